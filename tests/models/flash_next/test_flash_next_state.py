"""A state that returns to a checkpoint goes on as if nothing after it had ever run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.models.cache import Segment, SequenceState, ServedModel
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


@pytest.mark.parametrize("name", ["tiny", "tiny2", "tiny_mlx_q4"])
@pytest.mark.parametrize("rows", [2, 5, 12])
def test_every_number_of_kept_tokens_equals_having_run_only_them(
    served: Serve, feed: Feed, name: str, rows: int
) -> None:
    model = served(name)
    for begun in (0, 1, 26, 33, 62):
        for kept in range(rows + 1):
            plain, returned = model.build_state(), model.build_state()
            if begun:
                feed(model, plain, TOKENS[:begun])
                feed(model, returned, TOKENS[:begun])
            point = returned.checkpoint()
            model.forward([Segment(returned, TOKENS[begun : begun + rows], "all")])
            returned.rollback(point, kept)
            if kept:
                feed(model, plain, TOKENS[begun : begun + kept])
            check_alike(returned, plain, begun + kept)
            assert np.abs(feed(model, plain, (9,)) - feed(model, returned, (9,))).max() < 1e-5


@pytest.mark.parametrize("name", ["tiny", "tiny2"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_rounds_of_verifying_equal_a_clean_run(served: Serve, name: str, data: st.DataObject) -> None:
    model = served(name)
    states = [model.build_state() for _ in range(data.draw(st.integers(1, 3)))]
    texts: list[tuple[int, ...]] = [() for _ in states]
    for _ in range(data.draw(st.integers(1, 6))):
        moved = data.draw(st.lists(st.sampled_from(range(len(states))), min_size=1, unique=True))
        runs = {i: tuple(data.draw(st.lists(st.integers(0, 511), min_size=1, max_size=5))) for i in moved}
        points = {i: states[i].checkpoint() for i in moved}
        model.forward([Segment(states[i], runs[i], "all") for i in moved])
        for i in moved:
            kept = data.draw(st.integers(0, len(runs[i])))
            states[i].rollback(points[i], kept)
            texts[i] += runs[i][:kept]
    for state, text in zip(states, texts, strict=True):
        clean = model.build_state()
        if text:
            model.forward([Segment(clean, text)])
        check_alike(state, clean, len(text))
        last = [model.forward([Segment(each, (17,))]).logits[0] for each in (state, clean)]
        ours, theirs = (np.array(logits) for logits in last)
        assert np.abs(ours - theirs).max() < 1e-4
        assert ours.argmax() == theirs.argmax()


@pytest.mark.parametrize("name", ["tiny", "tiny2"])
def test_a_packed_pass_equals_each_segment_alone(served: Serve, feed: Feed, name: str) -> None:
    model = served(name)
    lengths, begun = (3, 1, 40, 5, 1), (70, 0, 20, 30, 33)
    packed, alone = ([model.build_state() for _ in lengths] for _ in range(2))
    for states in (packed, alone):
        for state, count in zip(states, begun, strict=True):
            if count:
                feed(model, state, TOKENS[:count])
    tokens = [TOKENS[count : count + rows] for count, rows in zip(begun, lengths, strict=True)]
    for choice in ([0, 1, 2, 3, 4], [4, 3, 1, 0]):  # with a chunk of a prompt, and without
        together = model.forward([Segment(packed[i], tokens[i], "all") for i in choice])
        for i, logits, stream in zip(choice, together.logits, together.streams, strict=True):
            single = model.forward([Segment(alone[i], tokens[i], "all")])
            assert logits is not None
            assert single.logits[0] is not None
            assert logits.shape == single.logits[0].shape == (lengths[i], 512)
            assert np.abs(np.array(logits - single.logits[0])).max() < 1e-4
            assert np.abs(np.array(stream - single.streams[0])).max() < 1e-4
            check_alike(packed[i], alone[i], alone[i].offset)


def test_only_the_rows_that_are_asked_for_get_logits(served: Serve) -> None:
    model = served("tiny")
    states = [model.build_state() for _ in range(3)]
    forward = model.forward(
        [
            Segment(states[0], (5, 6, 7), "last"),
            Segment(states[1], (5, 6), "none"),
            Segment(states[2], (5, 6, 7), "all"),
        ]
    )
    last, none, every = forward.logits
    assert none is None
    assert last is not None
    assert every is not None
    assert (last.shape, every.shape) == ((1, 512), (3, 512))
    assert np.abs(np.array(last[0] - every[-1])).max() < 1e-5
    assert [stream.shape for stream in forward.streams] == [(3, 4, 64), (2, 4, 64), (3, 4, 64)]


def test_tokens_can_be_kept_only_of_a_verified_forward(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state = model.build_state()
    point = state.checkpoint()
    feed(model, state, TOKENS[:4])
    with pytest.raises(AssertionError, match="rows 'all'"):
        state.rollback(point, 2)
    state.rollback(point, 4)  # nothing is lost, so nothing is needed
    model.forward([Segment(state, TOKENS[4:6], "all")])
    with pytest.raises(AssertionError, match="more than one forward"):
        state.rollback(point, 5)
    with pytest.raises(AssertionError, match="more than was run"):
        state.rollback(point, 7)


def check_alike(ours: SequenceState, theirs: SequenceState, length: int) -> None:
    """Both states hold the same: offsets, last tokens, windows, recurrent states, and every row by position."""
    assert isinstance(ours, FlashNextState)
    assert isinstance(theirs, FlashNextState)
    assert (ours.offset, ours.recent) == (length, theirs.recent)
    assert theirs.offset == length
    assert max(ours.blocks_done, theirs.blocks_done) <= length // 4
    assert np.abs(flat(ours, length) - flat(theirs, length)).max(initial=0) < 1e-4


def flat(state: FlashNextState, length: int) -> Any:
    """Every number that a state holds up to a length, beside block keys, which are kept up only when needed."""
    parts = [part[:, :, :length] for arrays in state.layers if len(arrays) == 4 for part in arrays[:3]]
    parts += [array for arrays in state.layers if len(arrays) == 2 for array in arrays]
    return np.concatenate([np.array(part).ravel() for part in [*parts, *state.windows]])
