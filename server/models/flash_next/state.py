"""What Flash Next remembers of one sequence, with points to return to."""

from __future__ import annotations

import mlx.core as mx
import msgspec

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

    def arrays(self) -> list[mx.array]:
        """All arrays that the next step depends on, to be evaluated with it."""
        return [array for arrays in self.layers for array in arrays] + self.windows

    def checkpoint(self) -> Checkpoint:
        """A point to return to. Returning to an earlier one makes those taken after it void."""
        return Checkpoint(owner=id(self), offset=self._offset, recent=self.recent, fixed=tuple(self._fixed()))

    def rollback(self, checkpoint: object) -> None:
        """Return to a checkpoint of this state: as if nothing after it had ever run."""
        assert isinstance(checkpoint, Checkpoint)
        assert checkpoint.owner == id(self), "a checkpoint of another sequence"
        assert checkpoint.offset <= self._offset, "a checkpoint that an earlier rollback made void"
        fixed = iter(checkpoint.fixed)
        self.layers = [arrays if sparse else [next(fixed), next(fixed)] for arrays, sparse in self._paired()]
        self.windows = list(fixed)
        self._offset, self.recent = checkpoint.offset, checkpoint.recent
        self.blocks_done = min(self.blocks_done, self._offset // self._ratio)

    def advance(self, tokens: tuple[int, ...]) -> None:
        """Count tokens whose rows have been put in."""
        self._offset += len(tokens)
        context = len(self.recent)
        self.recent = (*self.recent, *tokens)[-context:] if context else ()

    def leap(self, offset: int) -> None:
        """Stand at a position without having run up to it: for rehearsals, whose results nobody reads."""
        self._offset = 0
        self.reserve(offset)
        self._offset = offset

    def reserve(self, tokens: int) -> None:
        """Make room for this many more tokens in every buffer."""
        capacity, needed = self.capacity, self._offset + tokens
        if needed <= capacity or not any(self._sparse):
            return
        step = max(GROWTH_STEP, capacity // GROWTH_SHARE)
        grown = -(-max(needed, capacity + step) // GROWTH_STEP) * GROWTH_STEP
        lengths = (grown, grown, grown, grown // self._ratio)
        self.layers = [
            [_lengthen(array, length) for array, length in zip(arrays, lengths, strict=True)] if sparse else arrays
            for arrays, sparse in self._paired()
        ]

    def _paired(self) -> zip[tuple[list[mx.array], bool]]:
        return zip(self.layers, self._sparse, strict=True)

    def _fixed(self) -> list[mx.array]:
        return [array for arrays, sparse in self._paired() if not sparse for array in arrays] + self.windows


def _lengthen(buffer: mx.array, length: int) -> mx.array:
    """The buffer with zeros after its rows, up to `length` of them."""
    missing = (*buffer.shape[:2], length - buffer.shape[2], buffer.shape[3])
    return mx.concatenate([buffer, mx.zeros(missing, buffer.dtype)], axis=2)
