"""The file itself: read whole, replaced whole. The only code that writes homebase.toml.

A save is a new file beside the real one that takes its name in one step, so a reader sees the old text or the new one
and never a part. Knows no TOML.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import stat
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from server.errors import PolicyConflict, PolicyInvalid, PolicyUnwritable

LARGEST_BYTES = 1_048_576
"""A file longer than this is no policy file, and is not read into memory."""

_SUFFIX = ".saving"
"""Ends the name of the temporary file, so that one left by a killed process is known as ours and removed."""

_LOCK_WAIT_S = 2.0
_LOCK_STEP_S = 0.01

_STALE_S = 60.0
"""Age of a temporary file that is removed where folders cannot be locked; a save takes milliseconds."""


def read_bytes(path: Path) -> bytes | None:
    """The file's bytes, None when there is no file. Raises PolicyInvalid when there is one that cannot be read."""
    try:
        # Without O_NONBLOCK, opening a pipe with no writer would wait for ever.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PolicyInvalid(f"{path.name}: The file cannot be read: {_reason(error)}.") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise PolicyInvalid(f"{path.name}: This is not a file but a folder or a device.")
        data = _read_all(handle)
    except OSError as error:
        raise PolicyInvalid(f"{path.name}: The file cannot be read: {_reason(error)}.") from None
    finally:
        os.close(handle)
    if len(data) > LARGEST_BYTES:
        raise PolicyInvalid(f"{path.name}: The file has more than {LARGEST_BYTES:,} bytes, too many for a policy.")
    return data


def _read_all(handle: int) -> bytes:
    """The rest of a file, up to one byte more than is allowed."""
    parts: list[bytes] = []
    left = LARGEST_BYTES + 1
    while left > 0 and (part := os.read(handle, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def list_hops(path: Path) -> tuple[Path, ...]:
    """The path, then each symbolic link's target down to the real file, whether that exists or not."""
    hops = [path]
    while len(hops) < 40 and hops[-1].is_symlink():
        hops.append(hops[-1].parent / os.readlink(hops[-1]))
    return tuple(hops)


@contextmanager
def hold_folder(path: Path) -> Generator[bool]:
    """Keep other consoles from saving beside the real file meanwhile; False where the folder cannot be locked.

    The lock is on the folder: the file's own would go with the old file when it is replaced.
    """
    target = _resolve(path)
    try:
        _make_folder(path, target)
        handle = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        raise _refuse(path, error) from None
    try:
        yield _lock(handle, path)
    finally:
        os.close(handle)


def check_writable(path: Path) -> None:
    """Raise PolicyUnwritable when the file is one that `replace_bytes` would refuse for what it is."""
    with suppress(OSError):
        _examine(path, _resolve(path))


def replace_bytes(path: Path, data: bytes | None, expected: bytes | None, *, locked: bool) -> None:
    """Make the real file behind `path` hold `data`, or remove it when that is None.

    Mode, owner and extended attributes stay; links stay links. A file that is read-only or has hard links is refused:
    replacing it would undo what its owner asked for, or part the names. Raises PolicyConflict when the file no longer
    holds `expected`, PolicyUnwritable when it cannot be written; then nothing has changed.
    """
    target = _resolve(path)
    try:
        _remove_leftovers(target, locked=locked)
        before = _examine(path, target)
        if data is None:
            _require_unchanged(path, expected)
            target.unlink(missing_ok=True)
        else:
            _write_beside(path, target, data, expected, before)
        _sync_folder(target.parent)
    except OSError as error:
        raise _refuse(path, error) from None


def _write_beside(path: Path, target: Path, data: bytes, expected: bytes | None, before: os.stat_result | None) -> None:
    # Nobody else may read it before it has the mode of the file it replaces, which may hold an api_key.
    mode = 0o666 if before is None else 0o600
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_SUFFIX}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        try:
            _write_all(handle, data)
            if before is not None:
                _copy_attributes(target, handle, before)
            os.fsync(handle)
        finally:
            os.close(handle)
        _require_unchanged(path, expected)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _write_all(handle: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(handle, data[written:])


def _require_unchanged(path: Path, expected: bytes | None) -> None:
    if read_bytes(path) != expected:
        raise PolicyConflict(f"{path.name} was changed at this very moment; nothing was saved.")


def _examine(path: Path, target: Path) -> os.stat_result | None:
    """The status of the file to replace, None when there is none; refuses what must not be replaced."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if not status.st_mode & 0o222:
        raise PolicyUnwritable(
            f"{path} cannot be saved: the file is read-only (mode {stat.S_IMODE(status.st_mode):03o}). "
            "Nothing was changed."
        )
    if not os.access(target, os.W_OK):
        read_only_disk = os.statvfs(target).f_flag & os.ST_RDONLY
        raise _refuse(path, OSError(errno.EROFS if read_only_disk else errno.EACCES, ""))
    if status.st_nlink > 1:
        raise PolicyUnwritable(
            f"{path} cannot be saved: the file has {status.st_nlink} hard links, and a save would part them. "
            "Use a symbolic link instead. Nothing was changed."
        )
    return status


def _copy_attributes(target: Path, handle: int, before: os.stat_result) -> None:
    """Owner first: changing it may clear bits of the mode. Then the mode, then access lists and the rest."""
    mine = os.fstat(handle)
    if (mine.st_uid, mine.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(handle, before.st_uid, before.st_gid)
    os.fchmod(handle, stat.S_IMODE(before.st_mode))
    with suppress(OSError):
        _copy_extended_attributes(target, handle)


if sys.platform == "linux":

    def _copy_extended_attributes(target: Path, handle: int) -> None:
        for name in os.listxattr(target):
            with suppress(OSError):
                os.setxattr(handle, name, os.getxattr(target, name))

elif sys.platform == "darwin":

    def _copy_extended_attributes(target: Path, handle: int) -> None:
        """Python has no call for these here; the C library copies access lists (1) and attributes (4) together."""
        source = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            ctypes.CDLL(None).fcopyfile(source, handle, None, ctypes.c_uint32(1 | 4))
        finally:
            os.close(source)

else:

    def _copy_extended_attributes(target: Path, handle: int) -> None:
        """Nothing is known here."""


def _remove_leftovers(target: Path, *, locked: bool) -> None:
    """Remove what saves that were killed left behind. Under the lock no other save can be under way."""
    prefix = f".{target.name}."
    with os.scandir(target.parent) as entries:
        left = [entry for entry in entries if entry.name.startswith(prefix) and entry.name.endswith(_SUFFIX)]
    for entry in left:
        with suppress(OSError):
            if locked or time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_S:
                os.unlink(entry.path)


def _lock(handle: int, path: Path) -> bool:
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise PolicyUnwritable(
                    f"{path} cannot be saved: another program holds its folder. Nothing was changed."
                ) from None
            time.sleep(_LOCK_STEP_S)
        except OSError:
            # Some network folders know no locks; a save is still whole, only two at once are not kept apart.
            return False
        else:
            return True


def _resolve(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _make_folder(path: Path, target: Path) -> None:
    """The folder of a first save; that of a link's missing target is not ours to make."""
    if path.is_symlink():
        if not target.parent.is_dir():
            raise PolicyUnwritable(
                f"{path} cannot be saved: it is a link to {target}, whose folder is missing. Nothing was changed."
            )
        return
    target.parent.mkdir(parents=True, exist_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut. The file is in place already: a refusal here changes nothing."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _refuse(path: Path, error: OSError) -> PolicyUnwritable:
    return PolicyUnwritable(f"{path} cannot be saved: {_reason(error)}. Nothing was changed.")


def _reason(error: OSError) -> str:
    if error.errno in _REASONS:
        return _REASONS[error.errno]
    return (error.strerror or str(error)).lower()


_REASONS = {
    errno.EACCES: "permission denied",
    errno.EROFS: "its disk is mounted read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.ELOOP: "its links go round in a circle",
    errno.ENOTDIR: "a part of its path is not a folder",
}
"""The system's words where plainer ones exist."""
