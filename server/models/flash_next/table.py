"""The n-gram table: rows read from the checkpoint's files when they are looked up, never loaded as a whole.

The real table has 320 million rows (100 GB in bfloat16) of which a token needs 16; the operating system keeps the
pages that are used. Rows are read and not mapped: a file that is cut while it is mapped ends the whole process (SIGBUS)
at the next look, and one that is read fails the sequence that looks.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import numpy.typing as npt

from server.errors import SequenceFailed
from server.models.tensor_files import TensorInfo

NEAR_BYTES = 4096
"""Rows no further apart are read in one go with what lies between them: a page costs less than another call."""

FEW_LOOKUPS = 64
"""Up to here rows are read one by one: a decode step of nano then looks up its 4 in 25 us, else in 180, most of it for
parts of NumPy that no cache holds between two steps (2 x86 cores, 2026-11-30)."""

HOST_DTYPES: dict[str, tuple[Any, mx.Dtype | None]] = {
    # NumPy has no bfloat16: its bits travel as integers and are named again on the other side.
    "BF16": (np.uint16, mx.bfloat16),
    "F16": (np.float16, None),
    "F32": (np.float32, None),
    "U32": (np.uint32, None),
    # 8-bit floats, and scales that MLX keeps as bytes.
    "F8_E4M3": (np.uint8, None),
    "F8_E8M0": (np.uint8, None),
    "U8": (np.uint8, None),
}
EIGHTS = frozenset({"F8_E4M3", "U8"})
"""How a weight of 8-bit floats may be named; its rows have one factor in common."""

FLOAT_MODES = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
"""Packings without biases by (bits, columns of a group): each mode of MLX has one only."""


class Packing(msgspec.Struct, frozen=True):
    """How rows are quantized: with a scale, and when affine a bias, for each group of columns."""

    bits: int
    group_size: int
    mode: str
    """As MLX names it: affine, nvfp4, mxfp4, mxfp8."""


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

    def __init__(
        self,
        shards: Sequence[TableShard],
        columns: int,
        dtype: mx.Dtype,
        packing: Packing | None = None,
        scale: float | None = None,
    ) -> None:
        self.columns = columns
        """Width of a row once unpacked."""
        self._dtype = dtype
        self._ends = np.cumsum([shard.weight.shape[0] for shard in shards])
        self._bounds: list[int] = self._ends.tolist()
        self._starts = np.concatenate([[0], self._ends[:-1]])
        self._parts = [StoredRows(infos) for infos in zip(*(shard.parts for shard in shards), strict=True)]
        self._kinds = [HOST_DTYPES[part.dtype][1] for part in shards[0].parts]
        self._packing, self._scale = packing, scale
        self.nbytes = sum(part.end - part.start for shard in shards for part in shard.parts)
        """Bytes in the files, of which memory never holds more than the system's own copies of touched pages."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1])

    def gather(self, rows: npt.NDArray[np.int64]) -> mx.array:
        """The rows (T, heads) side by side: (T, heads * columns), in the model's dtype.

        Raises:
            SequenceFailed: a file has been cut short since it was loaded.
        """
        parts = self._read_few(rows) if rows.size <= FEW_LOOKUPS else self._read_many(rows)
        arrays = [_to_device(part, kind) for part, kind in zip(parts, self._kinds, strict=True)]
        return self._unpack(arrays).astype(self._dtype).reshape(rows.shape[0], -1)

    def _read_few(self, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        """Each part of the rows, one after the other."""
        shards = [(bisect_right(self._bounds, row), row) for row in rows.ravel().tolist()]
        places = [(shard, row - (self._bounds[shard - 1] if shard else 0)) for shard, row in shards]
        return [part.read_few(places) for part in self._parts]

    def _read_many(self, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        """The same, each different row once and in the order of the file."""
        wanted, places = np.unique(rows, return_inverse=True)
        shard = np.searchsorted(self._ends, wanted, side="right")
        local = wanted - self._starts[shard]
        return [part.read(shard, local)[places.reshape(-1)] for part in self._parts]

    def _unpack(self, arrays: list[mx.array]) -> mx.array:
        if self._scale is not None:
            return mx.from_fp8(arrays[0], dtype=mx.float32) * self._scale
        if (packing := self._packing) is None:
            return arrays[0]
        biases = arrays[2].astype(self._dtype) if len(arrays) > 2 else None
        scales = arrays[1] if biases is None else arrays[1].astype(self._dtype)
        return mx.dequantize(
            arrays[0], scales, biases, group_size=packing.group_size, bits=packing.bits, mode=packing.mode
        )


class StoredRows:
    """One tensor of rows that is spread over shards; holds their files open."""

    def __init__(self, shards: Sequence[TensorInfo]) -> None:
        self._shards = shards
        self._dtype = np.dtype(HOST_DTYPES[shards[0].dtype][0])
        self._row_bytes = shards[0].shape[1] * self._dtype.itemsize
        opened = {file: os.open(file, os.O_RDONLY) for file in {shard.file for shard in shards}}
        self._descriptors = [opened[shard.file] for shard in shards]
        for descriptor in opened.values():
            weakref.finalize(self, os.close, descriptor)

    def read_few(self, places: Sequence[tuple[int, int]]) -> npt.NDArray[Any]:
        """Rows (n, width) by shard and place therein, in any order."""
        whole = b"".join([self._read_run(shard, local, 1) for shard, local in places])
        return np.frombuffer(whole, self._dtype).reshape(len(places), -1)

    def read(self, shard: npt.NDArray[np.int64], local: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Rows (n, width) by shard and place therein; both ascend and no row comes twice."""
        near = NEAR_BYTES // self._row_bytes + 1
        cuts = np.flatnonzero((np.diff(local) > near) | (np.diff(shard) != 0)) + 1
        firsts, lasts = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(local)]]) - 1
        counts = local[lasts] - local[firsts] + 1
        runs = zip(shard[firsts].tolist(), local[firsts].tolist(), counts.tolist(), strict=True)
        whole = b"".join([self._read_run(*run) for run in runs])
        # Where a run's rows lie in the whole, less where they lie in the shard.
        shifts = np.cumsum(counts) - counts - local[firsts]
        places = local + np.repeat(shifts, lasts - firsts + 1)
        return np.frombuffer(whole, self._dtype).reshape(int(counts.sum()), -1)[places]

    def _read_run(self, shard: int, first: int, count: int) -> bytes:
        wanted, info = count * self._row_bytes, self._shards[shard]
        data = os.pread(self._descriptors[shard], wanted, info.start + first * self._row_bytes)
        if len(data) < wanted:
            raise SequenceFailed(
                f"The weights file {info.file.name} has been cut short or changed since it was loaded: rows of the "
                "n-gram table are gone. Put the file back, or fetch it again, and restart the server."
            )
        return data


def infer_packing(shard: TableShard, columns: int) -> Packing | None:
    """How a shard is quantized, from its shapes; None when it is stored plainly.

    Raises ValueError, with the end of a sentence, when its rows do not unpack to so many columns.
    """
    width, packed = shard.weight.shape[1], shard.weight.dtype == "U32"
    if packed != (shard.scales is not None) or (shard.biases is not None and not packed):
        raise ValueError(f"is stored as {shard.weight.dtype} with {len(shard.parts) - 1} of the scales and biases")
    if shard.scales is None:
        if width != columns:
            raise ValueError(f"has rows of {width} columns where the config calls for {columns}")
        return None
    groups = shard.scales.shape[1]
    if not groups or columns % groups or width * 32 % columns:
        raise ValueError(f"has rows of {width} stored columns in {groups} groups, which do not unpack to {columns}")
    bits, group_size = width * 32 // columns, columns // groups
    if shard.biases is not None:
        if shard.biases.shape != shard.scales.shape:
            raise ValueError("has biases of another shape than its scales")
        return Packing(bits, group_size, "affine")
    if shard.scales.dtype not in ("U8", "F8_E4M3", "F8_E8M0") or (bits, group_size) not in FLOAT_MODES:
        raise ValueError(f"is packed in {bits} bits by groups of {group_size} without biases, which cannot be read")
    return Packing(bits, group_size, FLOAT_MODES[bits, group_size])


def _to_device(rows: npt.NDArray[Any], kind: mx.Dtype | None) -> mx.array:
    array = mx.array(rows)
    return array if kind is None else array.view(kind)
