"""Files of the prefix cache's second tier: safetensors, with a header that says what is in them. Any thread.

Arrays are turned into the host's and back by the caller's thread alone; reading and writing touch no MLX.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import msgspec
import numpy as np
import numpy.typing as npt

from server.models.regular_file import open_regular

LONGEST_HEADER_BYTES = 16 * 2**20

_TYPES: dict[str, tuple[mx.Dtype, Any]] = {
    "F32": (mx.float32, np.float32),
    "BF16": (mx.bfloat16, np.uint16),  # NumPy has none: its bits travel as integers
    "F16": (mx.float16, np.float16),
    "I64": (mx.int64, np.int64),
    "I32": (mx.int32, np.int32),
    "I16": (mx.int16, np.int16),
    "I8": (mx.int8, np.int8),
    "U64": (mx.uint64, np.uint64),
    "U32": (mx.uint32, np.uint32),
    "U16": (mx.uint16, np.uint16),
    "U8": (mx.uint8, np.uint8),
    "BOOL": (mx.bool_, np.bool_),
}
_NAMES = {kind: name for name, (kind, _) in _TYPES.items()}


class FileBroken(Exception):
    """A file that is not what it should be; the message says how."""


class HostTensor(msgspec.Struct, frozen=True):
    """An array as the host sees it; shares the memory of the one it was made of."""

    type_name: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in a header."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


class Header(msgspec.Struct, frozen=True):
    """What a file says of itself."""

    notes: dict[str, str]
    tensors: dict[str, _Entry]
    data_at: int


def to_host(array: mx.array) -> HostTensor:
    """An array that is evaluated, without copying it."""
    data = np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
    return HostTensor(_NAMES[array.dtype], array.shape, data)


def from_host(tensor: HostTensor) -> mx.array:
    """An array of its own."""
    array = mx.array(tensor.data)
    return array.view(mx.bfloat16) if tensor.type_name == "BF16" else array


def write_file(path: Path, notes: Mapping[str, str], tensors: Mapping[str, HostTensor]) -> int:
    """Write a file that is there wholly or not at all; its size. Raises OSError."""
    buffers = [np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data for tensor in tensors.values()]
    checksum, entries, end = _sum_notes(notes), dict[str, Any](), 0
    for (name, tensor), buffer in zip(tensors.items(), buffers, strict=True):
        checksum = zlib.crc32(buffer, checksum)
        entries[name] = {"dtype": tensor.type_name, "shape": tensor.shape, "data_offsets": [end, end + len(buffer)]}
        end += len(buffer)
    entries["__metadata__"] = {**notes, "crc32": f"{checksum:08x}"}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    part = path.with_name(f".{path.stem}-{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)  # left by a process of the same number, or no file at all
        with part.open("xb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for buffer in buffers:
                file.write(buffer)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    return 8 + len(header) + end


def read_header(path: Path) -> Header:
    """What a file says of itself, checked against its length. Raises OSError and FileBroken."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, LONGEST_HEADER_BYTES):
            raise FileBroken("it has no header")
        raw = file.read(length)
    try:
        document = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        notes = msgspec.json.decode(document.pop("__metadata__"), type=dict[str, str])
        tensors = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in document.items()}
    except (msgspec.MsgspecError, LookupError, UnicodeDecodeError) as fault:
        raise FileBroken("its header cannot be read") from fault
    header = Header(notes, tensors, 8 + length)
    _check_extents(header, size)
    return header


def read_file(path: Path) -> tuple[dict[str, str], dict[str, HostTensor]]:
    """Everything in a file, checked. Raises OSError and FileBroken."""
    header = read_header(path)
    with open_regular(path) as file:
        file.seek(header.data_at)
        data = file.read()
    notes = dict(header.notes)
    if notes.pop("crc32", "") != f"{zlib.crc32(data, _sum_notes(notes)):08x}":
        raise FileBroken("it has changed since it was written")
    return notes, {name: _read_tensor(data, entry) for name, entry in header.tensors.items()}


def _sum_notes(notes: Mapping[str, str]) -> int:
    return zlib.crc32(json.dumps(sorted(notes.items())).encode())


def _check_extents(header: Header, size: int) -> None:
    """Raise FileBroken unless the tensors fill the file end to end."""
    end = 0
    for name, entry in header.tensors.items():
        if entry.dtype not in _TYPES:
            raise FileBroken(f"its tensor {name} is of no known type")
        length = math.prod(entry.shape) * np.dtype(_TYPES[entry.dtype][1]).itemsize
        if entry.data_offsets != (end, end + length):
            raise FileBroken(f"its tensor {name} has the wrong length")
        end += length
    if header.data_at + end != size:
        raise FileBroken(f"it has {size:,} bytes in place of {header.data_at + end:,}")


def _read_tensor(data: bytes, entry: _Entry) -> HostTensor:
    kind, (first, last) = np.dtype(_TYPES[entry.dtype][1]), entry.data_offsets
    array = np.frombuffer(data, kind, (last - first) // kind.itemsize, first)
    return HostTensor(entry.dtype, entry.shape, array.reshape(entry.shape))
