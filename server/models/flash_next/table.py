"""The n-gram table: rows read from memory-mapped checkpoint files, never loaded as a whole.

The real table has 320 million rows (100 GB in bfloat16) of which a token needs 16; the operating system keeps the
pages that are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import numpy.typing as npt

from server.models.tensor_files import TensorInfo

HOST_DTYPES: dict[str, tuple[Any, mx.Dtype | None]] = {
    # NumPy has no bfloat16: its bits travel as integers and are named again on the other side.
    "BF16": (np.uint16, mx.bfloat16),
    "F16": (np.float16, None),
    "F32": (np.float32, None),
    "U32": (np.uint32, None),
}


class Packing(msgspec.Struct, frozen=True):
    """How rows are quantized; affine, with scale and bias for each group of columns."""

    bits: int
    group_size: int


class TableShard(msgspec.Struct, frozen=True):
    """A range of rows: the stored weight and, when quantized, its scales and biases."""

    weight: TensorInfo
    scales: TensorInfo | None = None
    biases: TensorInfo | None = None

    @property
    def parts(self) -> tuple[TensorInfo, ...]:
        """The tensors that together make the rows."""
        return tuple(part for part in (self.weight, self.scales, self.biases) if part is not None)


class NgramTable:
    """All shards of one PLE layer's table, as consecutive ranges of rows."""

    def __init__(self, shards: Sequence[TableShard], columns: int, dtype: mx.Dtype) -> None:
        self.columns = columns
        """Width of a row once unpacked."""
        self._dtype = dtype
        self._ends = np.cumsum([shard.weight.shape[0] for shard in shards])
        # One list for each part; a list holds the maps of all shards.
        self._maps = [[_map_tensor(part) for part in parts] for parts in zip(*(s.parts for s in shards), strict=True)]
        self._kinds = [HOST_DTYPES[part.dtype][1] for part in shards[0].parts]
        self._packing = infer_packing(shards[0], columns)
        self.nbytes = sum(part.end - part.start for shard in shards for part in shard.parts)
        """Bytes in the files, of which only the touched pages are ever in memory."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1])

    def gather(self, rows: npt.NDArray[np.int64]) -> mx.array:
        """The rows (T, heads) side by side: (T, heads * columns), in the model's dtype."""
        flat = rows.reshape(-1)
        shard = np.searchsorted(self._ends, flat, side="right")
        local = flat - np.concatenate([[0], self._ends])[shard]
        parts = [_gather_host(maps, shard, local) for maps in self._maps]
        arrays = [_to_device(part, kind) for part, kind in zip(parts, self._kinds, strict=True)]
        return self._unpack(arrays).astype(self._dtype).reshape(rows.shape[0], -1)

    def _unpack(self, arrays: list[mx.array]) -> mx.array:
        if self._packing is None:
            return arrays[0]
        weight, scales, biases = (arrays[0], arrays[1].astype(self._dtype), arrays[2].astype(self._dtype))
        return mx.dequantize(weight, scales, biases, self._packing.group_size, self._packing.bits)


def infer_packing(shard: TableShard, columns: int) -> Packing | None:
    """How a shard is quantized, from its shapes; None when it is stored plainly."""
    if shard.scales is None:
        return None
    return Packing(bits=shard.weight.shape[1] * 32 // columns, group_size=columns // shard.scales.shape[1])


def _map_tensor(info: TensorInfo) -> npt.NDArray[Any]:
    host, _ = HOST_DTYPES[info.dtype]
    return np.memmap(info.file, dtype=host, mode="r", offset=info.start, shape=info.shape)


def _gather_host(maps: list[npt.NDArray[Any]], shard: npt.NDArray[Any], local: npt.NDArray[Any]) -> npt.NDArray[Any]:
    result = np.empty((len(local), maps[0].shape[1]), maps[0].dtype)
    for index in np.unique(shard):
        here = shard == index
        result[here] = maps[index][local[here]]
    return result


def _to_device(rows: npt.NDArray[Any], kind: mx.Dtype | None) -> mx.array:
    array = mx.array(rows)
    return array if kind is None else array.view(kind)
