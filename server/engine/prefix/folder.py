"""The folder of the second tier as it is on disk: one folder below it for each model, all of them under one limit.

Only regular files are looked at, opened or deleted: whatever else has such a name is not ours, and a pipe would block.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

SUFFIX = ".safetensors"
PART_SUFFIX = ".part"
"""Of a file that is being written, or was when its writer died."""

STALE_PART_S = 3600.0
"""No file takes so long to write."""


class StoredFile(msgspec.Struct, frozen=True):
    """A regular file."""

    path: Path
    nbytes: int
    used_s: float
    """When it was last of use, in Unix time."""


def list_files(root: Path, suffix: str = SUFFIX) -> Iterator[StoredFile]:
    """The files of all models, in no order."""
    for folder in _scan(root):
        if folder.is_dir(follow_symlinks=False):
            yield from list_folder(Path(folder.path), suffix)


def list_folder(folder: Path, suffix: str = SUFFIX) -> Iterator[StoredFile]:
    """The files of one model."""
    for entry in _scan(folder):
        with contextlib.suppress(OSError):  # another server may have deleted it
            if entry.name.endswith(suffix) and _is_file(entry):
                status = entry.stat(follow_symlinks=False)
                yield StoredFile(Path(entry.path), status.st_size, status.st_mtime)


def list_others(folder: Path) -> list[str]:
    """Names in one model's folder that a file could have, of what is none."""
    return sorted(entry.name for entry in _scan(folder) if entry.name.endswith(SUFFIX) and not _is_file(entry))


def is_other(path: Path) -> bool:
    """True when there is something at a file's place that is no file."""
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def delete_file(path: Path) -> bool:
    """Delete a regular file; True when it is gone, whoever did it."""
    try:
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
            return True
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def sweep_parts(root: Path) -> None:
    """Delete what writers that died have left half written, of any model."""
    for part in list_files(root, PART_SUFFIX):
        if time.time() - part.used_s > STALE_PART_S:
            delete_file(part.path)


def _is_file(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        return entry.is_file(follow_symlinks=False)
    return False


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing when it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
