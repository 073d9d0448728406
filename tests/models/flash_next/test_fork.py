"""A fork goes on as its own sequence, and so does the one it was taken of: neither sees what the other writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.models.cache import DraftSegment, Segment, SequenceState, ServedModel
from server.models.flash_next.state import FlashNextState

Serve = Callable[[str], ServedModel]
Feed = Callable[..., Any]

TOKENS = tuple(int(token) for token in np.random.default_rng(17).integers(4, 500, 400))
OURS, THEIRS = TOKENS[300:330], TOKENS[350:380]


def run_clean(model: ServedModel, feed: Feed, tokens: tuple[int, ...]) -> Any:
    return feed(model, model.build_state(), tokens)


def read_buffers(state: SequenceState) -> list[Any]:
    mx.eval(state.arrays())
    return [np.array(array) for array in state.arrays()]


@pytest.mark.parametrize("name", ["tiny", "tiny2", "tiny_mlx_q4"])
@pytest.mark.parametrize("begun", [0, 1, 20, 31, 62, 250])
@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_both_sides_go_on_as_if_alone(served: Serve, feed: Feed, name: str, begun: int, chunk: int) -> None:
    model = served(name)
    state = model.build_state()
    if begun:
        feed(model, state, TOKENS[:begun])
    fork = state.fork()
    assert isinstance(fork, SequenceState)
    assert (fork.offset, fork.nbytes) == (begun, state.nbytes)
    ours, theirs = None, None
    for start in range(0, 24, chunk):  # by turns
        ours = feed(model, state, OURS[start : start + chunk])
        theirs = feed(model, fork, THEIRS[start : start + chunk])
    end = -(-24 // chunk) * chunk
    assert state.offset == fork.offset == begun + end
    assert np.abs(ours - run_clean(model, feed, TOKENS[:begun] + OURS[:end])).max() < 1e-4
    assert np.abs(theirs - run_clean(model, feed, TOKENS[:begun] + THEIRS[:end])).max() < 1e-4


def test_both_sides_may_run_in_one_pass_and_before_anything_was_evaluated(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state = model.build_state()
    model.forward([Segment(state, TOKENS[:40], "none")])
    forks = [state, state.fork(), state.fork()]
    tails = OURS[:3], THEIRS[:5], TOKENS[:20]
    segments = [Segment(fork, tail) for fork, tail in zip(forks, tails, strict=True)]
    model.forward(segments)
    forward = model.forward(segments)
    for fork, tail, logits in zip(forks, tails, forward.logits, strict=True):
        assert logits is not None
        assert fork.offset == 40 + 2 * len(tail)
        assert np.abs(np.array(logits)[0] - run_clean(model, feed, TOKENS[:40] + tail * 2)).max() < 1e-4


@pytest.mark.parametrize("begun", [20, 62])
@pytest.mark.parametrize("rows", [1, 4, 12])
@pytest.mark.parametrize("fork_writes", [False, True])
def test_what_one_side_writes_never_reaches_the_other(
    served: Serve, feed: Feed, begun: int, rows: int, fork_writes: bool
) -> None:
    model = served("tiny")
    state = model.build_state()
    feed(model, state, TOKENS[:begun])
    fork = state.fork()
    writer, reader = (fork, state) if fork_writes else (state, fork)
    before = read_buffers(reader)
    for _ in range(3):
        feed(model, writer, OURS[:rows])
    assert all(np.array_equal(old, new) for old, new in zip(before, read_buffers(reader), strict=True))


def find_buffers(state: SequenceState) -> list[int]:
    """Where the buffers of sparse layers lie in memory."""
    assert isinstance(state, FlashNextState)
    mx.eval(state.arrays())
    buffers = [array for arrays in state.layers if len(arrays) == 4 for array in arrays]
    return [np.asarray(buffer).__array_interface__["data"][0] for buffer in buffers]


@pytest.mark.parametrize("rows", [1, 4, 12])
def test_buffers_are_shared_until_one_side_writes_and_then_copied_once(served: Serve, feed: Feed, rows: int) -> None:
    model = served("tiny")
    state = model.build_state()
    feed(model, state, TOKENS[:100])
    fork, places = state.fork(), find_buffers(state)
    assert find_buffers(fork) == places
    feed(model, fork, THEIRS[:rows])
    copied = find_buffers(fork)
    assert not set(copied) & set(places)
    feed(model, fork, THEIRS[:rows])
    feed(model, state, OURS[:rows])
    assert find_buffers(fork) == copied
    assert find_buffers(state) == places


def test_a_state_can_still_return_into_rows_that_it_ran_before_it_was_forked(served: Serve, feed: Feed) -> None:
    model = served("tiny2")
    state = model.build_state()
    feed(model, state, TOKENS[:33])
    point = state.checkpoint()
    model.forward([Segment(state, TOKENS[33:38], "all")])
    fork = state.fork()
    state.rollback(point, 2)
    assert (state.offset, fork.offset) == (35, 38)
    ours, theirs = feed(model, state, OURS[:4]), feed(model, fork, THEIRS[:4])
    assert np.abs(ours - run_clean(model, feed, TOKENS[:35] + OURS[:4])).max() < 1e-4
    assert np.abs(theirs - run_clean(model, feed, TOKENS[:38] + THEIRS[:4])).max() < 1e-4


def test_a_fork_takes_checkpoints_of_its_own_alone(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state = model.build_state()
    feed(model, state, TOKENS[:10])
    point, fork = state.checkpoint(), state.fork()
    with pytest.raises(AssertionError, match="another sequence"):
        fork.rollback(point)
    own = fork.checkpoint()
    model.forward([Segment(fork, THEIRS[:3], "all")])
    fork.rollback(own, 1)
    got = feed(model, fork, OURS[:2])
    assert np.abs(got - run_clean(model, feed, TOKENS[:10] + THEIRS[:1] + OURS[:2])).max() < 1e-4


def test_a_fork_outlives_what_it_was_taken_of(served: Serve, feed: Feed) -> None:
    model = served("tiny")
    state = model.build_state()
    feed(model, state, TOKENS[:70])
    last = state.fork().fork()
    del state
    assert np.abs(feed(model, last, OURS[:5]) - run_clean(model, feed, TOKENS[:70] + OURS[:5])).max() < 1e-4


@pytest.mark.parametrize("begun", [1, 40, 250])
@pytest.mark.parametrize("rows", [1, 4, 20])
def test_the_state_of_the_draft_head_forks_too(served: Serve, begun: int, rows: int) -> None:
    model = served("tiny")
    head = model.mtp
    assert head is not None
    streams = mx.array(np.random.default_rng(3).normal(size=(begun + 2 * rows, 4, 64)).astype(np.float32))

    def draft(state: SequenceState, first: int, count: int, tokens: tuple[int, ...]) -> Any:
        forward = head.forward([DraftSegment(state, streams[first : first + count], tokens)])
        mx.eval(forward.logits[0], state.arrays())
        return np.array(forward.logits[0])

    def draft_clean(first: int, tail: tuple[int, ...]) -> Any:
        state = head.build_state()
        draft(state, 0, begun, TOKENS[:begun])
        return draft(state, first, rows, tail)

    state = head.build_state()
    draft(state, 0, begun, TOKENS[:begun])
    fork = state.fork()
    before = read_buffers(fork)
    ours = draft(state, begun, rows, OURS[:rows])
    assert all(np.array_equal(old, new) for old, new in zip(before, read_buffers(fork), strict=True))
    theirs = draft(fork, begun + rows, rows, THEIRS[:rows])
    assert state.offset == fork.offset == begun + rows
    assert np.abs(ours - draft_clean(begun, OURS[:rows])).max() < 1e-4
    assert np.abs(theirs - draft_clean(begun + rows, THEIRS[:rows])).max() < 1e-4


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_tree_of_forks_equals_clean_runs(served: Serve, data: st.DataObject) -> None:
    model = served("tiny2")
    states: list[SequenceState] = [model.build_state()]
    texts: list[tuple[int, ...]] = [()]
    for _ in range(data.draw(st.integers(1, 6))):
        moved = data.draw(st.lists(st.sampled_from(range(len(states))), min_size=1, unique=True))
        runs = {i: TOKENS[i : i + data.draw(st.sampled_from([1, 2, 5, 30]))] for i in moved}
        points = {i: states[i].checkpoint() for i in moved}
        model.forward([Segment(states[i], runs[i], "all") for i in moved])
        for i in moved:
            if data.draw(st.booleans()):
                states.append(states[i].fork())
                texts.append(texts[i] + runs[i])
            kept = data.draw(st.integers(0, len(runs[i])))
            states[i].rollback(points[i], kept)
            texts[i] += runs[i][:kept]
    for state, text in zip(states, texts, strict=True):
        assert isinstance(state, FlashNextState)
        assert state.offset == len(text)
        clean = model.build_state()
        if text:
            model.forward([Segment(clean, text)])
        ours, theirs = (np.array(model.forward([Segment(each, (17,))]).logits[0]) for each in (state, clean))
        assert np.abs(ours - theirs).max() < 1e-4
