"""What a decode step reads of memory, by the shapes of a loaded model, and what a few steps took at load. Pure."""

from __future__ import annotations

import msgspec


class StepReads(msgspec.Struct, frozen=True):
    """Bytes that a decode step reads: what bounds its time on a device that computes faster than it reads."""

    dense_bytes: int = 0
    """Weights that every step reads once, whoever decodes; the output head with them."""
    expert_bytes: int = 0
    """One routed expert of one layer."""
    experts: int = 0
    """Routed experts of a layer."""
    experts_per_token: int = 0
    expert_layers: int = 0
    context_bytes: int = 0
    """Keys and values of one token that is attended to, in all layers together."""
    attended_tokens: int = 0
    """The most tokens of a context that sparse attention reads; 0 reads them all."""
    index_bytes: int = 0
    """What the indexer reads of each token beyond those, to pick them."""
    state_bytes: int = 0
    """Recurrent states and windows of a sequence: each step reads them and writes them anew."""
    head_bytes: int = 0
    """What a call of the MTP head reads, the output head with it; 0 without one."""
    is_packed: bool = True
    """False where each sequence goes through the model by itself, and so reads all weights again."""

    def expect_experts(self, rows: float) -> float:
        """Different experts of a layer that so many tokens are sent to, if each draws its own evenly.

        Each token misses an expert with probability 1 - k/E, so n of them leave E * (1 - k/E)^n unread. Real routers
        favour some experts, and rows of one text resemble each other: it is the most that is to be expected.
        """
        if not self.experts:
            return 0.0
        return self.experts * (1.0 - (1.0 - self.experts_per_token / self.experts) ** rows)

    def count_bytes(self, sequences: int, rows: int, context_tokens: int) -> float:
        """Bytes of a step in which so many sequences, with so many tokens together, decode on contexts of that sum."""
        passes = [rows] if self.is_packed else [rows / max(1, sequences)] * sequences
        weights = sum(
            self.dense_bytes + self.expert_layers * self.expert_bytes * self.expect_experts(each) for each in passes
        )
        return weights + 2.0 * sequences * self.state_bytes + self._count_context(sequences, context_tokens)

    def _count_context(self, sequences: int, context_tokens: int) -> float:
        most = sequences * self.attended_tokens if self.attended_tokens else context_tokens
        return self.context_bytes * min(context_tokens, most) + self.index_bytes * max(0, context_tokens - most)


class TimedSteps(msgspec.Struct, frozen=True):
    """Steps that were run on blank states once the model was loaded, in seconds; 0 where none was.

    They hold what no count of bytes tells: the price of each operation, however small its arrays.
    """

    one_s: float = 0.0
    """A sequence with one token."""
    pair_s: float = 0.0
    """Two sequences with one token each."""
    wide_s: float = 0.0
    """A sequence with three tokens, as when two drafts are verified."""
    chunk_s: float = 0.0
    """The first `CHUNK_TOKENS` tokens of a prompt."""
    far_s: float = 0.0
    """A sequence with one token after `far_tokens`: past the budget of sparse attention, whose indexer works there."""
    far_tokens: int = 0
    """0 for a model that attends to everything."""


WIDE_TOKENS = 3
CHUNK_TOKENS = 64
