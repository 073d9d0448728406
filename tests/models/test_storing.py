"""States that are taken apart by spans and built again go on as if they had never been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from server.models.cache import DraftSegment, FixedPart, Segment, SequenceState, ServedModel, StorableState

Serve = Callable[[str], ServedModel]

TOKENS = tuple(int(token) for token in np.random.default_rng(24).integers(4, 500, 400))
"""Without a near tie in what the sparse layers select. One is decided by the last bit, which products with buffers of
another capacity round differently, and random weights have many."""
MORE = TOKENS[350:380]


def run(model: ServedModel, state: SequenceState, tokens: Sequence[int]) -> Any:
    forward = model.forward([Segment(state, tuple(tokens))])
    mx.eval(forward.logits[0], state.arrays())
    return np.array(forward.logits[0])


def rebuild(model: ServedModel, state: SequenceState, cuts: Sequence[int]) -> StorableState:
    """The same state from spans that end at the cuts."""
    assert isinstance(state, StorableState)
    edges = [0, *cuts, state.offset]
    spans = [state.export_rows(first, end) for first, end in pairwise(edges)]
    fixed = state.export_fixed()
    mx.eval(spans, fixed.arrays)
    built = model.build_state()
    assert isinstance(built, StorableState)
    built.restore(spans, fixed)
    return built


@pytest.mark.parametrize("name", ["tiny", "tiny2", "tiny_mlx_q4", "nano"])
@pytest.mark.parametrize(("begun", "cuts"), [(1, ()), (3, (1,)), (20, (7, 8)), (62, ()), (250, (33, 101)), (320, (4,))])
@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_a_rebuilt_state_goes_on_like_the_first(
    served: Serve, name: str, begun: int, cuts: tuple[int, ...], chunk: int
) -> None:
    model = served(name)
    state = model.build_state()
    run(model, state, TOKENS[:begun])
    built = rebuild(model, state, cuts)
    assert built.offset == begun
    for start in range(0, 24, chunk):
        ours, theirs = (run(model, each, MORE[start : start + chunk]) for each in (state, built))
        assert np.abs(ours - theirs).max() < 1e-5


def test_a_rebuilt_state_can_be_taken_back_into(served: Serve) -> None:
    model = served("tiny2")
    state = model.build_state()
    run(model, state, TOKENS[:70])
    for each in (state, rebuild(model, state, (30,))):
        point = each.checkpoint()
        model.forward([Segment(each, MORE[:4], "all")])
        each.rollback(point, 2)
        clean = model.build_state()
        run(model, clean, TOKENS[:70] + MORE[:2])
        assert np.abs(run(model, each, MORE[7:9]) - run(model, clean, MORE[7:9])).max() < 1e-4


def test_neither_side_sees_what_the_other_writes(served: Serve) -> None:
    model = served("tiny")
    state = model.build_state()
    run(model, state, TOKENS[:200])
    assert isinstance(state, StorableState)
    rows, fixed = state.export_rows(0, 200), state.export_fixed()
    mx.eval(rows, fixed.arrays)
    before = [np.array(array) for array in (*rows, *fixed.arrays.values())]
    built = model.build_state()
    assert isinstance(built, StorableState)
    built.restore([rows], fixed)
    for each in (state, built, state, built):
        run(model, each, MORE[:7])
        run(model, each, MORE[:1])
    after = [np.array(array) for array in (*rows, *fixed.arrays.values())]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("begun", [2, 40, 250])
def test_the_state_of_the_draft_head_too(served: Serve, begun: int) -> None:
    head = served("tiny").mtp
    assert head is not None
    streams = mx.array(np.random.default_rng(3).normal(size=(begun + 8, 4, 64)).astype(np.float32))
    state = head.build_state()
    head.forward([DraftSegment(state, streams[:begun], TOKENS[:begun])])
    assert isinstance(state, StorableState)
    assert state.export_fixed().fits_anywhere
    built = head.build_state()
    assert isinstance(built, StorableState)
    built.restore([state.export_rows(0, 1), state.export_rows(1, begun)], FixedPart(begun, {}, {}))
    assert built.offset == begun
    for rows in (slice(begun, begun + 7), slice(begun + 7, begun + 8)):
        ours, theirs = (
            head.forward([DraftSegment(each, streams[rows], MORE[: rows.stop - rows.start])]).logits[0]
            for each in (state, built)
        )
        assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-5


def test_exports_hold_no_large_buffer(served: Serve) -> None:
    model = served("nano")
    state = model.build_state()
    run(model, state, TOKENS * 5)
    assert isinstance(state, StorableState)
    rows, fixed = state.export_rows(100, 140), state.export_fixed()
    mx.eval(rows, fixed.arrays)
    kept = sum(array.nbytes for array in rows) + fixed.nbytes
    before = mx.get_active_memory()
    held = state.nbytes
    del state
    mx.synchronize()
    slack = 16_384 * (len(rows) + len(fixed.arrays))  # MLX shares a buffer that is larger by less
    assert before - mx.get_active_memory() >= held - kept - slack


@pytest.mark.parametrize("fault", ["rows", "fixed", "length", "dtype", "recent"])
def test_what_is_of_another_model_is_refused(served: Serve, fault: str) -> None:
    model = served("tiny")
    state = model.build_state()
    run(model, state, TOKENS[:40])
    assert isinstance(state, StorableState)
    rows, fixed = state.export_rows(0, 40), state.export_fixed()
    match fault:
        case "rows":
            rows = rows[1:]
        case "fixed":
            fixed.arrays.popitem()
        case "length":
            rows = state.export_rows(0, 39)
        case "dtype":
            rows = (rows[0].astype(mx.float16), *rows[1:])
        case _:
            fixed.notes.clear()
    built = model.build_state()
    assert isinstance(built, StorableState)
    with pytest.raises(ValueError, match=r"another model|rows"):
        built.restore([rows], fixed)
