"""Flash Next as the engine sees it: facts, states, and logits of segments."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from server.memory_plan import StreamCost
from server.models.cache import Forward, ModelFacts, MtpHead, Segment
from server.models.flash_next.model import FlashNext
from server.models.flash_next.packed import Piece
from server.models.flash_next.spans import Spans, join
from server.models.flash_next.state import FlashNextState

REHEARSED_ROWS = 64
"""Rows of a rehearsed prefill: enough to take the ways of a long one."""


class ServedFlashNext:
    """A loaded backbone. Built and called on the engine thread only."""

    def __init__(self, model: FlashNext, facts: ModelFacts) -> None:
        self._model = model
        self._facts = facts

    @property
    def facts(self) -> ModelFacts:
        """What it is."""
        return self._facts

    def build_state(self) -> FlashNextState:
        """An empty state for a new sequence."""
        return self._model.build_state()

    @property
    def mtp(self) -> MtpHead | None:
        """The head that drafts for it; None when the checkpoint has none."""
        return self._model.drafter

    def rehearse(self) -> None:
        """Run each kind of step once on blank states, so that its kernels are built before a request waits for them.

        Past the attention budget a decode step has other kernels. The CPU backend compiles each by the system's C++
        compiler, a third of a second apiece on the first start of a machine; without one nothing is fused.
        """
        config = self._model.config
        past = config.indexer_budget + config.indexer_compress_ratio
        mx.eval(self.forward([Segment(state=self.build_state(), token_ids=(0,) * REHEARSED_ROWS)]).logits[0])
        for offset in (0, past - 1, past):
            state = self.build_state()
            state.leap(offset)
            mx.eval(self.forward([Segment(state=state, token_ids=(0,))]).logits[0], state.arrays())

    def forward(self, segments: Sequence[Segment]) -> Forward:
        """Append each segment's tokens to its state, all segments in one packed pass."""
        # In an order of their own, so that steps that differ only in who comes first share a trace.
        order = sorted(range(len(segments)), key=lambda i: (len(segments[i].token_ids), segments[i].rows))
        streams = self._run([segments[i] for i in order])
        wanted = [_wanted_rows(segments[i], stream) for i, stream in zip(order, streams, strict=True)]
        logits = iter(self._read([rows for rows in wanted if rows is not None]))
        ordered = [None if rows is None else next(logits) for rows in wanted]
        back = [order.index(i) for i in range(len(segments))]
        return Forward(logits=tuple(ordered[i] for i in back), streams=tuple(streams[i] for i in back))

    def _run(self, segments: Sequence[Segment]) -> list[mx.array]:
        pieces = [
            Piece(_own(segment.state), segment.token_ids, segment.rows == "all" and len(segment.token_ids) > 1)
            for segment in segments
        ]
        stream = self._model.run(pieces)
        return Spans(tuple(len(piece.tokens) for piece in pieces), (False,) * len(pieces)).split(stream)

    def _read(self, rows: list[mx.array]) -> list[mx.array]:
        """Logits of each group of stream rows; the output head runs once."""
        if not rows:
            return []
        logits = self._model.read_logits(join(rows))
        return Spans(tuple(group.shape[0] for group in rows), (False,) * len(rows)).split(logits)


def measure_stream(model: FlashNext) -> StreamCost:
    """What a sequence's state takes, the head's with it, by the shapes of its arrays."""
    costs = [model.build_state().cost, *([model.drafter.build_state().cost] if model.drafter else [])]
    return StreamCost(sum(cost.fixed_bytes for cost in costs), sum(cost.token_bytes for cost in costs))


def _wanted_rows(segment: Segment, stream: mx.array) -> mx.array | None:
    if segment.rows == "none":
        return None
    return stream[-1:] if segment.rows == "last" and stream.shape[0] > 1 else stream


def _own(state: object) -> FlashNextState:
    assert isinstance(state, FlashNextState)
    return state
