"""What the tree's nodes hold: rows of a span and points, of the model and of the head that drafts for it.

Row i of the head is made of the model's stream at i and of token i + 1. So the tokens of a span a..b fix the head's
rows a-1..b-2: what belongs to a node is the same in every prompt that goes through it. The newest row's stream waits
in a point for the token after it.
"""

from __future__ import annotations

import mlx.core as mx
import msgspec

from server.engine.drafting import DraftTrail
from server.models.cache import FixedPart, RowArrays, SequenceState, ServedModel, StorableState


class SpanRows(msgspec.Struct, frozen=True):
    """The rows that the tokens of a span add."""

    first: int
    end: int
    model: RowArrays
    head: RowArrays
    """Empty when the sequence did not draft."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (*self.model, *self.head))

    def cut(self, tokens: int) -> tuple[SpanRows, SpanRows]:
        """The first tokens' rows, and the rest's; neither keeps the other's alive."""
        middle = self.first + tokens
        upper = SpanRows(self.first, middle, *self._slice(self.first, middle))
        lower = SpanRows(middle, self.end, *self._slice(middle, self.end))
        mx.eval(upper.model, upper.head, lower.model, lower.head)
        return upper, lower

    def part(self, first: int, end: int) -> SpanRows:
        """The rows of a span within this one. Lazy; for what is to be used at once."""
        if (first, end) == (self.first, self.end):
            return self
        return SpanRows(first, end, *self._slice(first, end))

    def _slice(self, first: int, end: int) -> tuple[RowArrays, RowArrays]:
        head_first = _head_row(self.first)
        return (
            _slice(self.model, first - self.first, end - self.first),
            _slice(self.head, _head_row(first) - head_first, _head_row(end) - head_first),
        )


class Point(msgspec.Struct, frozen=True):
    """What of a sequence is right at one position only."""

    fixed: FixedPart
    stream: mx.array | None
    """(1, N, H) of the last token, for the head; None when the sequence did not draft."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.fixed.nbytes + (0 if self.stream is None else self.stream.nbytes)

    @property
    def arrays(self) -> list[mx.array]:
        """All of them."""
        return [*self.fixed.arrays.values(), *(() if self.stream is None else (self.stream,))]


def export_rows(state: StorableState, trail: DraftTrail | None, first: int, end: int) -> SpanRows:
    """The rows that tokens first..end-1 of a sequence have added. Lazy; the head has read up."""
    head: RowArrays = ()
    if trail is not None:
        head_state = as_storable(trail.state)
        head = head_state.export_rows(_head_row(first), _head_row(end))
    return SpanRows(first, end, state.export_rows(first, end), head)


def export_point(state: StorableState, trail: DraftTrail | None) -> Point:
    """What else there is of a sequence where it stands. Lazy."""
    return Point(state.export_fixed(), None if trail is None else mx.contiguous(trail.newest_stream))


def build(
    model: ServedModel, spans: list[SpanRows], point: Point, next_id: int
) -> tuple[SequenceState, DraftTrail | None]:
    """A sequence's state from the spans of its tokens and a point at their end, and the head's side of it.

    `next_id` is the token that comes after them. Raises ValueError for parts of another model.
    """
    tokens = point.fixed.offset
    assert [span.first for span in spans] == [0, *(span.end for span in spans[:-1])], "spans without gaps"
    assert spans[-1].end == tokens, "a point at the end of the spans"
    state = as_storable(model.build_state())
    state.restore([span.model for span in spans], point.fixed)
    assert state.offset == tokens, "a state as long as what it was built of"
    trail: DraftTrail | None = None
    if point.stream is not None and model.mtp is not None:
        head_state = as_storable(model.mtp.build_state())
        head_state.restore([span.head for span in spans], FixedPart(tokens - 1, {}, {}))
        trail = DraftTrail(head_state)
        trail.feed(mx.contiguous(point.stream), (next_id,))
        assert trail.rows == tokens, "the head stands where the model stands"
    mx.eval(state.arrays(), [] if trail is None else trail.state.arrays())  # a fault shows here, not in a stream
    return state, trail


def as_storable(state: SequenceState) -> StorableState:
    """The state, known to be one that can be taken apart."""
    assert isinstance(state, StorableState), "a state that can be stored"
    return state


def _head_row(position: int) -> int:
    """The first row of the head that the token at a position does not fix any more."""
    return max(0, position - 1)


def _slice(rows: RowArrays, first: int, end: int) -> RowArrays:
    return tuple(mx.contiguous(array[:, :, first:end]) for array in rows)
