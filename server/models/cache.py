"""What a sequence's model state can do, and what a model can do with it: the seam between engine and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import mlx.core as mx
import msgspec


@runtime_checkable
class SequenceState(Protocol):
    """Everything a model remembers of one sequence; owned by that sequence, dropped with it."""

    @property
    def offset(self) -> int:
        """Tokens in the state."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        ...

    def checkpoint(self) -> object:
        """A point to return to; cheap, and valid until the state is dropped."""
        ...

    def rollback(self, checkpoint: object) -> None:
        """Return to a checkpoint of this state: as if nothing after it had ever run."""
        ...

    def arrays(self) -> list[mx.array]:
        """All arrays that the next step depends on, to be evaluated with it."""
        ...


class Segment(msgspec.Struct, frozen=True):
    """One sequence's tokens in one step."""

    state: SequenceState
    token_ids: tuple[int, ...]
    """At least one."""


class ModelFacts(msgspec.Struct, frozen=True):
    """What there is to know of a loaded model without touching an array."""

    id: str
    """The name that clients use."""
    path: str
    architecture: str
    vocab_size: int
    context_limit_tokens: int
    dtype: str
    quantization: str
    parameters: int
    weights_bytes: int
    has_mtp: bool
    """True when the checkpoint carries a multi-token-prediction head."""
    embedded: bool


class ServedModel(Protocol):
    """A model that the engine can run. Built and called on the engine thread only."""

    @property
    def facts(self) -> ModelFacts:
        """What it is."""
        ...

    def build_state(self) -> SequenceState:
        """An empty state for a new sequence."""
        ...

    def forward(self, segments: Sequence[Segment]) -> mx.array:
        """Append each segment's tokens to its state; logits (len(segments), V) float32 of each one's last token.

        Lazy: the caller evaluates the result together with the states' arrays. When it raises, the states that it
        touched are unusable and their sequences fail; others are unharmed.
        """
        ...
