"""What Flash Next remembers of one sequence, with points to return to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx
import msgspec

from server.memory_plan import StreamCost
from server.models.cache import FixedPart, RowArrays
from server.models.flash_next.delta import LinearTrail
from server.models.flash_next.delta_rule import return_within
from server.models.rows import check_rows

GROWTH_STEP = 256
"""Tokens by which the buffers grow at least; a decode step is traced anew for each capacity."""
GROWTH_SHARE = 8
"""From eight steps on, buffers grow by a capacity / 8: few copies and traces, at most an eighth of slack."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A point in one sequence. It shares arrays with the state, and so costs nothing until they are replaced."""

    owner: int
    offset: int
    recent: tuple[int, ...]
    fixed: tuple[mx.array, ...]
    """The arrays that cannot be cut back: convolution windows and recurrent states."""


class Trail(msgspec.Struct, frozen=True):
    """What a return to between the rows of the newest forward needs."""

    offset: int
    """Where its rows began."""
    tokens: tuple[int, ...]
    linear: tuple[LinearTrail, ...]
    """Of each linear layer, in order."""
    windows: tuple[mx.array, ...]
    """All rows that each PLE layer's convolution saw."""


class FlashNextState:
    """All layers' arrays of one sequence.

    Buffers of sparse layers (keys, values, indexer keys, block keys) hold rows by position: returning to an earlier
    point only moves the offset, and rows after it are overwritten. Windows and recurrent states are replaced by each
    step and never written to, so a checkpoint keeps the old ones.
    """

    def __init__(
        self,
        layers: list[list[mx.array]],
        windows: list[mx.array],
        *,
        sparse: tuple[bool, ...],
        recent: tuple[int, ...],
        ratio: int,
    ) -> None:
        self.layers = layers
        """For each layer: four buffers when sparse, else window and recurrent state."""
        self.windows = windows
        """For each PLE layer, its convolution's window."""
        self.recent = recent
        """The last tokens, as many as the n-gram hash looks back; end of text before the start."""
        self.blocks_done = 0
        """Blocks, from the first, whose keys are in every sparse layer's buffer."""
        self._sparse = sparse
        self._ratio = ratio
        self._offset = 0
        self._trail: Trail | None = None

    @property
    def offset(self) -> int:
        """Tokens in the state."""
        return self._offset

    @property
    def capacity(self) -> int:
        """Tokens that the buffers have room for; 0 for a model without sparse layers."""
        return next((arrays[0].shape[2] for arrays, sparse in self._paired() if sparse), 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        return sum(array.nbytes for array in self.arrays())

    @property
    def cost(self) -> StreamCost:
        """What a state of these shapes takes at any length."""
        buffers = (array for arrays, sparse in self._paired() if sparse for array in arrays)
        rows = -(-sum(buffer.nbytes for buffer in buffers) // max(1, self.capacity))
        return StreamCost(sum(array.nbytes for array in self._fixed()), rows)

    def arrays(self) -> list[mx.array]:
        """All arrays that the next step depends on, to be evaluated with it."""
        return [array for arrays in self.layers for array in arrays] + self.windows

    def checkpoint(self) -> Checkpoint:
        """A point to return to. Returning to an earlier one makes those taken after it void."""
        return Checkpoint(owner=id(self), offset=self._offset, recent=self.recent, fixed=tuple(self._fixed()))

    def rollback(self, checkpoint: object, keep_tokens: int = 0) -> None:
        """Return to a checkpoint of this state, keeping the first tokens of the one forward since.

        A state of sparse layers alone, as the MTP head's, can keep any tokens that were run since.
        """
        assert isinstance(checkpoint, Checkpoint)
        assert checkpoint.owner == id(self), "a checkpoint of another sequence"
        target = checkpoint.offset + keep_tokens
        assert target <= self._offset, "a checkpoint that an earlier rollback made void, or more than was run"
        if target < self._offset:
            if not keep_tokens or not checkpoint.fixed:
                fixed, recent = list(checkpoint.fixed), checkpoint.recent
            else:
                fixed, recent = self._return_within(checkpoint, keep_tokens)
            self._put_fixed(fixed)
            self._offset, self.recent = target, recent
            self.blocks_done = min(self.blocks_done, target // self._ratio)
        self._trail = None

    def fork(self) -> FlashNextState:
        """An independent copy; the next write to a buffer that both still hold copies it, on whichever side that is."""
        copy = FlashNextState(
            [list(arrays) for arrays in self.layers],
            list(self.windows),
            sparse=self._sparse,
            recent=self.recent,
            ratio=self._ratio,
        )
        copy.blocks_done, copy._offset = self.blocks_done, self._offset
        return copy

    def advance(self, tokens: tuple[int, ...]) -> None:
        """Count tokens whose rows have been put in."""
        self._offset += len(tokens)
        self.recent = _last(self.recent, tokens)
        self._trail = None

    def keep_trail(self, trail: Trail) -> None:
        """Remember the way back into the forward that has just been counted."""
        self._trail = trail

    def _return_within(self, checkpoint: Checkpoint, keep: int) -> tuple[list[mx.array], tuple[int, ...]]:
        """The fixed arrays and last tokens after the first `keep` tokens of the newest forward."""
        trail = self._trail
        assert trail is not None, "the forward since the checkpoint was not run with rows 'all'"
        assert trail.offset == checkpoint.offset, "more than one forward since the checkpoint"
        before = iter(checkpoint.fixed)
        fixed: list[mx.array] = []
        for part in trail.linear:
            assert part
            window, state = next(before), next(before)
            rows, delta = part
            fixed += [rows[keep : keep + window.shape[0]], return_within(delta, state, keep)]
        for rows, window in zip(trail.windows, before, strict=True):
            fixed.append(rows[keep : keep + window.shape[0]])
        return fixed, _last(checkpoint.recent, trail.tokens[:keep])

    def _put_fixed(self, fixed: list[mx.array]) -> None:
        left = iter(fixed)
        self.layers = [arrays if sparse else [next(left), next(left)] for arrays, sparse in self._paired()]
        self.windows = list(left)

    def leap(self, offset: int) -> None:
        """Stand at a position without having run up to it: for rehearsals, whose results nobody reads."""
        self._offset = 0
        self.reserve(offset)
        self._offset = offset

    def reserve(self, tokens: int) -> None:
        """Make room for this many more tokens in every buffer, and for the blocks that they touch."""
        capacity, needed = self.capacity, self._offset + tokens + 2 * self._ratio
        if needed <= capacity or not any(self._sparse):
            return
        grown = _grow(capacity, needed)
        lengths = (grown, grown, grown, grown // self._ratio)
        self.layers = [
            [_lengthen(array, length) for array, length in zip(arrays, lengths, strict=True)] if sparse else arrays
            for arrays, sparse in self._paired()
        ]

    def export_rows(self, first: int, end: int) -> RowArrays:
        """Keys, values and raw indexer keys of positions first..end-1, of each sparse layer.

        Block keys are left out: they are made of the raw ones, all anew in the first step after `restore`.
        """
        assert 0 <= first <= end <= self._offset, "rows that are there"
        return tuple(mx.contiguous(buffer[:, :, first:end]) for buffer in self._row_buffers())

    def export_fixed(self) -> FixedPart:
        """Windows, recurrent states and the last tokens, at the present offset."""
        arrays = {str(number): mx.contiguous(array) for number, array in enumerate(self._fixed())}
        notes = {"recent": " ".join(map(str, self.recent))} if self.recent else {}
        return FixedPart(self._offset, arrays, notes)

    def restore(self, spans: Sequence[RowArrays], fixed: FixedPart) -> None:
        """Make this empty state what it was where `fixed` was taken."""
        assert self._offset == 0, "an empty state"
        recent = tuple(int(token) for token in fixed.notes.get("recent", "").split())
        check_rows(list(self._row_buffers()), spans, fixed.offset)
        own = self._fixed()
        fits = [array.shape for array in own] == [array.shape for array in fixed.arrays.values()]
        if not fits or len(recent) != len(self.recent):
            raise ValueError("the fixed part of a state of another model")
        self._put_fixed([mx.contiguous(array) for array in fixed.arrays.values()])
        self.recent, self.blocks_done, self._trail = recent, 0, None
        capacity = _grow(fixed.offset, fixed.offset + 2 * self._ratio)
        parts = (list(part) for part in zip(*spans, strict=True))
        self.layers = [
            [
                *(_join(next(parts), buffer, capacity) for buffer in arrays[:3]),
                _lengthen(arrays[3], capacity // self._ratio),
            ]
            if sparse
            else arrays
            for arrays, sparse in self._paired()
        ]
        self._offset = fixed.offset

    def _row_buffers(self) -> Iterator[mx.array]:
        return (buffer for arrays, sparse in self._paired() if sparse for buffer in arrays[:3])

    def _paired(self) -> Iterator[tuple[list[mx.array], bool]]:
        return zip(self.layers, self._sparse, strict=True)

    def _fixed(self) -> list[mx.array]:
        return [array for arrays, sparse in self._paired() if not sparse for array in arrays] + self.windows


def _last(recent: tuple[int, ...], tokens: tuple[int, ...]) -> tuple[int, ...]:
    """The last tokens, as many as are remembered."""
    return (*recent, *tokens)[-len(recent) :] if recent else ()


def _grow(capacity: int, needed: int) -> int:
    """The next capacity after one that is too small."""
    step = max(GROWTH_STEP, capacity // GROWTH_SHARE)
    return -(-max(needed, capacity + step) // GROWTH_STEP) * GROWTH_STEP


def _join(parts: list[mx.array], buffer: mx.array, capacity: int) -> mx.array:
    """A buffer like another, with rows of spans in it from the start."""
    rows = sum(part.shape[2] for part in parts)
    missing = mx.zeros((*buffer.shape[:2], capacity - rows, buffer.shape[3]), buffer.dtype)
    return mx.concatenate([*parts, missing], axis=2)


def _lengthen(buffer: mx.array, length: int) -> mx.array:
    """The buffer with zeros after its rows, up to `length` of them."""
    missing = (*buffer.shape[:2], length - buffer.shape[2], buffer.shape[3])
    return mx.concatenate([buffer, mx.zeros(missing, buffer.dtype)], axis=2)
