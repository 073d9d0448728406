"""What a sequence's model state can do, and what a model can do with it: the seam between engine and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import mlx.core as mx
import msgspec

from server.memory_plan import MemoryPlan, StreamCost, find_budget
from server.step_reads import StepReads, TimedSteps


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

    def rollback(self, checkpoint: object, keep_tokens: int = 0) -> None:
        """Return to a checkpoint of this state: as if nothing after it had ever run.

        With `keep_tokens` (0 up to the segment's length) the first of the tokens that the ONE forward since the
        checkpoint ran stay in, equal to float32 rounding to having run only those. That forward's segment must have
        had `rows` "all" unless all of its tokens are kept.
        """
        ...

    def fork(self) -> SequenceState:
        """An independent copy of the sequence at this point; checkpoints stay with the state that they were taken of.

        Costs nothing until one side writes: arrays are shared until then, and counted in the `nbytes` of both.
        """
        ...

    def arrays(self) -> list[mx.array]:
        """All arrays that the next step depends on, to be evaluated with it."""
        ...


class FixedPart(msgspec.Struct, frozen=True):
    """What a state holds besides rows by position. Right only at the offset where it was taken."""

    offset: int
    """Tokens in the state there."""
    arrays: dict[str, mx.array]
    notes: dict[str, str]
    """What is no array, in words that a file's header can hold."""

    @property
    def fits_anywhere(self) -> bool:
        """True when there is nothing in it: rows alone make a state of this kind, at whatever position they are cut."""
        return not self.arrays and not self.notes

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


RowArrays = tuple[mx.array, ...]
"""Rows of a span of positions, of everything that has them: arrays whose axis 2 counts the positions."""


@runtime_checkable
class StorableState(SequenceState, Protocol):
    """A state that can be taken apart and built again: its rows by spans, and the rest at one position."""

    def export_rows(self, first: int, end: int) -> RowArrays:
        """The rows of positions first..end-1. They keep no larger buffer alive once they are evaluated."""
        ...

    def export_fixed(self) -> FixedPart:
        """What else there is at the present offset."""
        ...

    def restore(self, spans: Sequence[RowArrays], fixed: FixedPart) -> None:
        """Make this empty state what it was where `fixed` was taken, from the rows of all spans before, in order.

        Nothing is shared with what is handed in. Raises ValueError when it is not of this model; the state is then
        to be dropped.
        """
        ...


class Segment(msgspec.Struct, frozen=True):
    """One sequence's tokens in one step."""

    state: SequenceState
    token_ids: tuple[int, ...]
    """At least one."""
    rows: Literal["none", "last", "all"] = "last"
    """Which rows' logits are wanted; "all" also prepares the state for a rollback that keeps some of the tokens."""


class Forward(msgspec.Struct, frozen=True):
    """What one packed pass computed, segment by segment; lazy, to be evaluated with the states' arrays."""

    logits: tuple[mx.array | None, ...]
    """(rows, V) float32 of the rows that each segment asked for; None for "none"."""
    streams: tuple[mx.array, ...]
    """(T, N, H) of each segment, what the MTP head consumes; empty for a model without one."""


class DraftSegment(msgspec.Struct, frozen=True):
    """Rows of one sequence for the MTP head: row p is the target's stream at p with the token at p + 1."""

    state: SequenceState
    """Of the head, not of the model."""
    streams: mx.array
    """(T, N, H): the model's, or the head's own of the row before when it drafts deeper."""
    token_ids: tuple[int, ...] | mx.array
    """T tokens, each the next after its row; an array (T,) of integers when they have not been read yet."""
    wants_logits: bool = True
    """Of the last row; priming does without."""


class DraftForward(msgspec.Struct, frozen=True):
    """What the head computed, segment by segment; lazy, to be evaluated with the states' arrays."""

    logits: tuple[mx.array | None, ...]
    """(1, V) float32 of each segment's last row: what comes two tokens after it. None when not wanted."""
    streams: tuple[mx.array, ...]
    """(1, N, H) of each segment's last row: the input for the next depth."""


class MtpHead(Protocol):
    """The multi-token-prediction head of a model. Called on the engine thread only."""

    def build_state(self) -> SequenceState:
        """The head's own empty state for a new sequence; any `keep_tokens` up to what ran since is good there."""
        ...

    def forward(self, segments: Sequence[DraftSegment]) -> DraftForward:
        """Append each segment's rows to its state, packed over the sequences."""
        ...


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
    """True when a multi-token-prediction head is loaded with it."""
    embedded: bool
    no_mtp_because: str = "the checkpoint has no multi-token-prediction head"
    """Why nothing is drafted when there is none."""
    stream_bytes: int = 0
    """Memory of one sequence's state, the head's included, whatever its length."""
    token_bytes: int = 0
    """What each token adds to it."""
    device_bytes: int = 0
    """Memory that a program should not exceed on this device; 0 when nothing says so."""
    fingerprint: str = ""
    """What tells the weights, the drafter's with them, from others, as they were before they were read."""
    reads: StepReads = StepReads()
    """What a decode step reads."""
    timed: TimedSteps = TimedSteps()
    """What steps took when it was loaded."""
    bandwidth_bps: float = 0.0
    """Bytes per second that the device reads, measured then; 0 when it was not."""

    def plan_memory(self, memory_budget_gib: float) -> MemoryPlan:
        """What a budget leaves for streams beside this model; a negative one is what the device allows."""
        budget = find_budget(memory_budget_gib, self.device_bytes)
        return MemoryPlan(budget, self.weights_bytes, StreamCost(self.stream_bytes, self.token_bytes))


class ServedModel(Protocol):
    """A model that the engine can run. Built and called on the engine thread only."""

    @property
    def facts(self) -> ModelFacts:
        """What it is."""
        ...

    def build_state(self) -> SequenceState:
        """An empty state for a new sequence."""
        ...

    @property
    def mtp(self) -> MtpHead | None:
        """The head that drafts for it; None when the checkpoint has none."""
        ...

    def forward(self, segments: Sequence[Segment]) -> Forward:
        """Append each segment's tokens to its state, all segments in one packed pass.

        Lazy: the caller evaluates the result together with the states' arrays. When it raises, the states that it
        touched are usable again once they are rolled back to a checkpoint taken before; others are unharmed.
        """
        ...
