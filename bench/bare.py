"""A model by itself on this thread: forwards and drafting rounds with nothing around them.

Uses the seam between engine and models alone. Everything is greedy, and waits once for the model and, when drafting,
once for the head, as the least that any engine must do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import msgspec

from server.models.cache import DraftSegment, MtpHead, Segment, SequenceState, ServedModel
from server.models.scheduling import OneCore

CORE = OneCore()
"""Of the thread that imports this, which is the one that steps; an engine has one of its own."""
CHUNK_TOKENS = 512
"""Of a prefill that only fills a state."""


class Times(msgspec.Struct, frozen=True):
    """One step, in seconds."""

    build_s: float
    """In the calls that build graphs: Python, and MLX's making of operations."""
    eval_s: float
    """In MLX's evaluation."""

    @property
    def total_s(self) -> float:
        """Both."""
        return self.build_s + self.eval_s


def fill_state(model: ServedModel, tokens: Sequence[int]) -> SequenceState:
    """A state after a real prefill."""
    state = model.build_state()
    for start in range(0, len(tokens), CHUNK_TOKENS):
        model.forward([Segment(state, tuple(tokens[start : start + CHUNK_TOKENS]), "none")])
        mx.eval(state.arrays())
    return state


def leap_state(model: ServedModel, offset: int, seed: int) -> SequenceState:
    """A state that stands at a position without a prefill, its attention buffers full of noise.

    Noise, because keys that are all alike would all select the same blocks, side by side in memory.
    """
    state: Any = model.build_state()
    state.leap(offset)
    for layer, buffers in enumerate(state.layers):
        if len(buffers) == 4:  # of a sparse layer: keys, values, raw indexer keys, block keys
            keys = mx.random.split(mx.random.key(1000 * seed + layer), 3)
            noise = [mx.random.normal(old.shape, old.dtype, key=each) for old, each in zip(buffers, keys, strict=False)]
            state.layers[layer] = [*noise, buffers[3]]
    mx.eval(state.arrays())
    return state


def time_forward(model: ServedModel, states: Sequence[SequenceState], tokens: Sequence[int]) -> Times:
    """The same tokens for each state, in one forward, verified and taken back."""
    CORE.settle()
    before = [state.checkpoint() for state in states]
    began_s = time.perf_counter()
    passed = model.forward([Segment(state, tuple(tokens), "all") for state in states])
    best = [mx.argmax(logits, axis=-1) for logits in passed.logits if logits is not None]
    built_s = time.perf_counter()
    mx.eval(best, [state.arrays() for state in states])
    ended_s = time.perf_counter()
    for state, point in zip(states, before, strict=True):
        state.rollback(point)
    return Times(built_s - began_s, ended_s - built_s)


def time_decode(model: ServedModel, state: SequenceState, token: int) -> Times:
    """One token more, kept."""
    CORE.settle()
    began_s = time.perf_counter()
    logits = model.forward([Segment(state, (token,))]).logits[0]
    assert logits is not None
    best = mx.argmax(logits, axis=-1)
    built_s = time.perf_counter()
    mx.eval(best, state.arrays())
    best.tolist()
    return Times(built_s - began_s, time.perf_counter() - built_s)


class DraftLoop:
    """Rounds of drafting on one sequence: the head, `depth` drafts, their verification, and the way back.

    How many tokens a round keeps is prescribed, so that the cost does not depend on what is drafted; it comes from
    what an engine was seen to accept.
    """

    def __init__(self, model: ServedModel, prompt: Sequence[int], depth: int, tokens_per_step: float) -> None:
        assert model.mtp is not None
        self._model, self._head, self._depth = model, model.mtp, depth
        self._tokens_per_step = tokens_per_step
        self._rounds = 0
        self._state, self._own = model.build_state(), model.mtp.build_state()
        passed = model.forward([Segment(self._state, tuple(prompt))])
        self._streams, self._next = passed.streams[0], (*prompt[1:], prompt[0])
        mx.eval(self._streams, self._state.arrays())

    def time_round(self) -> Times:
        """One round."""
        CORE.settle()
        began_s, build_s = time.perf_counter(), 0.0
        kept = self._choose_kept()
        drafts = self._draft(self._head)
        build_s += time.perf_counter() - began_s
        eval_began_s = time.perf_counter()
        mx.eval(drafts, self._own.arrays())
        drafted = cast("list[int]", drafts.tolist())
        eval_s = time.perf_counter() - eval_began_s
        verify_began_s = time.perf_counter()
        before = self._state.checkpoint()
        passed = self._model.forward([Segment(self._state, (self._next[-1], *drafted), "all")])
        assert passed.logits[0] is not None
        drawn = mx.argmax(passed.logits[0], axis=-1)
        build_s += time.perf_counter() - verify_began_s
        eval_began_s = time.perf_counter()
        mx.eval(drawn, passed.streams)
        chosen = cast("list[int]", drawn.tolist())
        eval_s += time.perf_counter() - eval_began_s
        back_began_s = time.perf_counter()
        if kept <= self._depth:
            self._state.rollback(before, kept)
        self._streams, self._next = passed.streams[0][:kept], tuple(chosen[:kept])
        build_s += time.perf_counter() - back_began_s
        eval_began_s = time.perf_counter()
        mx.eval(self._state.arrays())
        return Times(build_s, eval_s + time.perf_counter() - eval_began_s)

    def _choose_kept(self) -> int:
        self._rounds += 1
        kept = int(self._rounds * self._tokens_per_step) - int((self._rounds - 1) * self._tokens_per_step)
        return max(1, min(self._depth + 1, kept))

    def _draft(self, head: MtpHead) -> mx.array:
        passed = head.forward([DraftSegment(self._own, self._streams, self._next)])
        caught_up = self._own.checkpoint()
        drafts: list[mx.array] = []
        while True:
            assert passed.logits[0] is not None
            drafts.append(mx.argmax(passed.logits[0], axis=-1))
            if len(drafts) == self._depth:
                break
            passed = head.forward([DraftSegment(self._own, passed.streams[0], drafts[-1])])
        self._own.rollback(caught_up)
        return mx.concatenate(drafts)
