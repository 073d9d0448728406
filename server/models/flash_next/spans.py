"""How the rows of a packed step divide into segments, for what must look at each sequence apart."""

from __future__ import annotations

from itertools import accumulate

import mlx.core as mx
import msgspec

FEW_ROWS = 8
"""Longest segment that runs compiled: a draft of any depth, and its verification."""
FEW_ROWS_TOTAL = 32
"""Most rows of a step that runs compiled. Nothing that waits for a result may be done for so few."""


class Spans(msgspec.Struct, frozen=True):
    """The lengths of the segments whose rows lie end to end, and which of them may be rolled back within."""

    lengths: tuple[int, ...]
    keeps_trail: tuple[bool, ...]
    """For each segment, whether what a rollback into it needs is handed out."""

    @property
    def total(self) -> int:
        """Rows of all segments."""
        return sum(self.lengths)

    @property
    def ends(self) -> tuple[int, ...]:
        """Where each segment's rows end."""
        return tuple(accumulate(self.lengths))

    def split(self, rows: mx.array) -> list[mx.array]:
        """Rows (T, ...) as one array per segment."""
        return [rows] if len(self.lengths) == 1 else list(mx.split(rows, list(self.ends[:-1]), axis=0))


def join(parts: list[mx.array]) -> mx.array:
    """The segments' rows end to end again."""
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
