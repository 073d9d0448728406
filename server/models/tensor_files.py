"""safetensors files looked at without loading them: which tensors there are, and whether all their bytes are.

Nothing here touches MLX; a truncated or garbled file is found before any array is built from it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from operator import index
from pathlib import Path, PurePath
from typing import Any

import msgspec

from server.errors import CheckpointInvalid, ModelNotFound
from server.models.regular_file import open_regular

MAX_HEADER_BYTES = 100_000_000
"""More is refused by the safetensors format itself."""

SHOWN_NAMES = 3
"""Names that an error lists; the rest are counted."""
SHOWN_CHARS = 200
"""Of a name that an error lists."""

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor in a file: its bytes are `file[start:end]`, row-major."""

    file: Path
    dtype: str
    """As safetensors spells it: BF16, F32, U32, I64."""
    shape: tuple[int, ...]
    start: int
    end: int
    name: str
    """As the file has it."""


class _Index(msgspec.Struct, frozen=True):
    """What is needed of an index: the file of each tensor."""

    weight_map: dict[str, str]


def scan_checkpoint(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor in the checkpoint's `model*.safetensors`, by its stored name.

    Raises:
        ModelNotFound: there is no such file in the folder.
        CheckpointInvalid: a file is truncated or garbled, or the index names one that is not there.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelNotFound(f"{folder} has no model*.safetensors file, so there are no weights to load.")
    named = _read_index(folder, {file.name for file in files})
    tensors: dict[str, TensorInfo] = {}
    # Files that the index names come last, so that what an earlier conversion left behind does not count.
    for file in sorted(files, key=lambda file: file.name in named):
        tensors.update(read_header(file))
    return tensors


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors that one file says it holds, with all their bytes checked to be there."""
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            header = stream.read(length) if 2 <= length <= min(MAX_HEADER_BYTES, size - 8) else b""
    except OSError as problem:
        raise CheckpointInvalid(f"{file} cannot be read: {problem.strerror}.") from None
    entries = _parse_header(file, header)
    base = 8 + length
    return {name: _check_entry(file, name, entry, base, size) for name, entry in entries.items()}


def _parse_header(file: Path, header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):  # also UnicodeDecodeError
        entries = None
    if not isinstance(entries, dict):
        raise CheckpointInvalid(f"{file} is not a safetensors file, or its beginning is damaged; fetch it again.")
    entries.pop("__metadata__", None)
    return entries


def _check_entry(file: Path, name: str, entry: Any, base: int, size: int) -> TensorInfo:
    try:
        start, end = (index(offset) for offset in entry["data_offsets"])
        shape = tuple(index(length) for length in entry["shape"])
        dtype = str(entry["dtype"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointInvalid(f"{file} describes the tensor {name} in a way that cannot be read.") from None
    if base + end > size:
        raise CheckpointInvalid(f"{file} is cut short: {name} ends at byte {base + end:,}, the file at {size:,}.")
    width = DTYPE_BYTES.get(dtype)
    if (
        not 0 <= start <= end
        or min(shape, default=0) < 0
        or (width is not None and end - start != math.prod(shape) * width)
    ):
        raise CheckpointInvalid(f"{file} gives {name} a length that does not match its shape {list(shape)} of {dtype}.")
    return TensorInfo(file=file, dtype=dtype, shape=shape, start=base + start, end=base + end, name=name)


def _read_index(folder: Path, present: set[str]) -> set[str]:
    """The files that the folder's index names, all of them there; empty when there is no index."""
    file = folder / "model.safetensors.index.json"
    if not file.exists():
        return set()
    try:
        with open_regular(file) as stream:
            document = msgspec.json.decode(stream.read(), type=_Index)
    except (OSError, ValueError, RecursionError):  # also msgspec's own errors
        raise CheckpointInvalid(f"{file} is not a readable index of tensors; fetch it again.") from None
    named = set(document.weight_map.values())
    if not named:
        raise CheckpointInvalid(f"{file} names no file for any tensor; fetch it again.")
    if outside := sorted(name for name in named if _leaves_folder(name)):
        raise CheckpointInvalid(f"{file} names files outside of its folder: {list_names(outside)}.")
    if missing := sorted(name for name in named - present if not _is_file(folder / name)):
        raise CheckpointInvalid(f"{folder} lacks files that its index names: {list_names(missing)}.")
    return named


def _leaves_folder(name: str) -> bool:
    return PurePath(name).is_absolute() or ".." in PurePath(name).parts


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def list_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    shown = (name if len(name) <= SHOWN_CHARS else f"{name[: SHOWN_CHARS - 1]}…" for name in names[:SHOWN_NAMES])
    return ", ".join(shown) + more
