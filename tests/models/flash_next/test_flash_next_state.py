"""A state that returns to a checkpoint goes on as if nothing after it had ever run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from server.models.cache import SequenceState, ServedModel
from server.models.flash_next.state import GROWTH_STEP, FlashNextState

Serve = Callable[[str], ServedModel]
Feed = Callable[..., Any]

TOKENS = tuple(int(token) for token in np.random.default_rng(7).integers(4, 500, 400))


@pytest.mark.parametrize("name", ["tiny", "tiny2", "tiny_mlx_q4"])
@pytest.mark.parametrize(
    ("kept", "lost", "then"),
    [
        (0, 3, 5),  # back to the beginning
        (1, 1, 1),
        (10, 4, 6),  # a few drafted rows, all within the budget
        (30, 10, 10),  # across the budget of 32
        (61, 1, 20),  # inside a block, one row
        (64, 3, 9),  # on a block's edge
        (250, 20, 20),  # across a growth of the buffers
    ],
)
@pytest.mark.parametrize("chunk", [1, 10_000])
def test_rolling_back_equals_never_having_run(
    served: Serve, feed: Feed, name: str, kept: int, lost: int, then: int, chunk: int
) -> None:
    model = served(name)
    plain, returned = model.build_state(), model.build_state()
    if kept:
        feed(model, plain, TOKENS[:kept])
        feed(model, returned, TOKENS[:kept])
    point = returned.checkpoint()
    feed(model, returned, TOKENS[-lost:], chunk)
    returned.rollback(point)
    assert returned.offset == kept
    after = TOKENS[kept : kept + then]
    expected, got = feed(model, plain, after, chunk), feed(model, returned, after, chunk)
    # Buffers that have grown are summed over more masked rows: equal up to the order of additions.
    assert np.abs(expected - got).max() < 1e-5
    assert returned.offset == plain.offset == kept + then


def test_a_checkpoint_can_be_returned_to_many_times(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state = model.build_state()
    feed(model, state, TOKENS[:50])
    point = state.checkpoint()
    outcomes: list[Any] = []
    for lost in (1, 6, 40):
        outcomes.append(feed(model, state, TOKENS[50:60], 3))
        state.rollback(point)
        feed(model, state, TOKENS[100 : 100 + lost], 1)
        state.rollback(point)
    assert all(np.array_equal(outcome, outcomes[0]) for outcome in outcomes)


def test_an_inner_checkpoint_holds_after_an_outer_one_was_taken(served: Serve, feed: Feed) -> None:
    model = served("tiny2")
    state, plain = model.build_state(), model.build_state()
    feed(model, plain, TOKENS[:40])
    feed(model, state, TOKENS[:40])
    outer = state.checkpoint()
    feed(model, state, TOKENS[40:50], 1)
    inner = state.checkpoint()
    feed(model, state, TOKENS[60:70], 1)
    state.rollback(inner)
    state.rollback(outer)
    assert np.array_equal(feed(model, plain, TOKENS[70:80], 1), feed(model, state, TOKENS[70:80], 1))


def test_a_checkpoint_made_void_or_foreign_is_not_accepted(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state, other = model.build_state(), model.build_state()
    early = state.checkpoint()
    feed(model, state, TOKENS[:5])
    late = state.checkpoint()
    state.rollback(early)
    with pytest.raises(AssertionError, match="made void"):
        state.rollback(late)
    with pytest.raises(AssertionError, match="another sequence"):
        other.rollback(early)


def test_a_checkpoint_copies_nothing(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state = model.build_state()
    feed(model, state, TOKENS[:100])
    before = mx.get_active_memory()
    points = [state.checkpoint() for _ in range(20)]
    assert mx.get_active_memory() == before
    del points


def test_sequences_do_not_disturb_each_other(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    alone = model.build_state()
    expected = [feed(model, alone, (token,)) for token in TOKENS[:60]]
    one, two = model.build_state(), model.build_state()
    got: list[Any] = []
    for token, foreign in zip(TOKENS[:60], TOKENS[200:260], strict=True):
        got.append(feed(model, one, (token,)))
        feed(model, two, (foreign,))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(got, expected, strict=True))


def test_buffers_grow_in_steps_and_are_counted(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state = model.build_state()
    assert isinstance(state, FlashNextState)
    assert isinstance(state, SequenceState)
    sizes: list[int] = []
    for _ in range(40):
        feed(model, state, TOKENS[:20], 20)
        sizes.append(state.capacity)
    assert state.offset == 800
    assert all(size % GROWTH_STEP == 0 for size in sizes)
    assert len(set(sizes)) == 4
    assert sizes[-1] < 800 + 2 * GROWTH_STEP
    assert state.nbytes == sum(array.nbytes for array in state.arrays())


def test_block_keys_are_kept_up_only_once_they_are_needed(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state = model.build_state()
    assert isinstance(state, FlashNextState)
    feed(model, state, TOKENS[:31], 1)
    assert state.blocks_done == 0  # all of the budget of 32 is visible without choosing
    feed(model, state, TOKENS[31:40], 1)
    assert state.blocks_done == 40 // 4
    feed(model, state, TOKENS[40:63], 23)
    assert state.blocks_done == 63 // 4


def test_steps_past_a_growth_equal_one_prefill(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state, once = model.build_state(), model.build_state()
    tokens = TOKENS[:270]
    feed(model, state, tokens[:250])
    stepped = feed(model, state, tokens[250:], 1)
    assert state.offset == 270 > GROWTH_STEP
    assert np.abs(stepped - feed(model, once, tokens)).max() < 1e-4
