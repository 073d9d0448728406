"""One settings file: what a merge would change, a backup, and the change. Writes that file and its backup alone."""

from __future__ import annotations

import difflib
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from console.client_settings.merge import merge_settings
from console.client_settings.shape import Format
from server.errors import StartupError


class Change(msgspec.Struct, frozen=True):
    """What would be written."""

    path: Path
    before: str | None
    """None for a file that is not there."""
    after: str

    @property
    def diff(self) -> str:
        """Changed lines with two around them; empty when the file says it all already."""
        old, new = (self.before or "").splitlines(), self.after.splitlines()
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), n=2, lineterm="")
        return "\n".join(lines) if self.after != self.before else ""


def plan_change(path: Path, values: Mapping[str, Any], format: Format) -> Change:
    """What merging the values would do. Raises StartupError for a file that cannot be read or merged."""
    before = _read(path)
    return Change(path, before, merge_settings(before or "", values, format, str(path)))


def apply_change(change: Change, now_s: float) -> Path | None:
    """Write it, after a backup of what was there; the backup's path, None for a new file.

    A link is followed, and the file keeps its mode. Raises StartupError when the file was changed meanwhile or cannot
    be written; it is then as it was.
    """
    if _read(change.path) != change.before:
        raise StartupError(f"{change.path} was changed meanwhile. Nothing was written; try again.")
    real = Path(os.path.realpath(change.path))
    written = real.with_name(f"{real.name}.{secrets.token_hex(4)}.new")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        backup = None if change.before is None else _back_up(real, now_s)
        with written.open("x", encoding="utf-8", newline="") as file:
            file.write(change.after)
            file.flush()
            os.fsync(file.fileno())
        if backup is not None:
            shutil.copymode(real, written)
        os.replace(written, real)
    except OSError as error:
        written.unlink(missing_ok=True)
        raise StartupError(f"{change.path} cannot be written: {error.strerror}.") from None
    return backup


def _back_up(path: Path, now_s: float) -> Path:
    """A copy named by the time; never over another one."""
    stem = f"{path.name}.bak-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now_s))}"
    names = (path.with_name(stem if number == 0 else f"{stem}-{number}") for number in range(1000))
    backup = next(name for name in names if not name.exists())
    shutil.copy2(path, backup)
    return backup


def _read(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StartupError(f"{path} cannot be read: {reason}.") from None
