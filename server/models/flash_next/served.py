"""Flash Next as the engine sees it: facts, states, and logits of segments."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from server.models.cache import ModelFacts, Segment
from server.models.flash_next.model import FlashNext
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

    def rehearse(self) -> None:
        """Run each kind of step once on blank states, so that its kernels are built before a request waits for them.

        Past the attention budget a decode step has other kernels. The CPU backend compiles each by the system's C++
        compiler, a third of a second apiece on the first start of a machine; without one nothing is fused.
        """
        config = self._model.config
        past = config.indexer_budget + config.indexer_compress_ratio
        mx.eval(self.forward([Segment(state=self.build_state(), token_ids=(0,) * REHEARSED_ROWS)]))
        for offset in (0, past - 1, past):
            state = self.build_state()
            state.leap(offset)
            mx.eval(self.forward([Segment(state=state, token_ids=(0,))]), state.arrays())

    def forward(self, segments: Sequence[Segment]) -> mx.array:
        """Append each segment's tokens to its state; logits (len(segments), V) float32 of each one's last token."""
        return mx.concatenate([self._run(segment) for segment in segments], axis=0)

    def _run(self, segment: Segment) -> mx.array:
        state = segment.state
        assert isinstance(state, FlashNextState)
        if len(segment.token_ids) == 1:
            return self._model.run_row(state, segment.token_ids[0])[1]
        stream = self._model.run(state, segment.token_ids)
        return self._model.read_logits(stream[-1:])
