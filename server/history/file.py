"""The file of the history: where it is, and how it is opened for writing and for reading."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from server.errors import HistoryError, HistoryMissing
from server.history.schema import MIGRATIONS, VERSION, Migration, check_version, migrate, read_version

BUSY_S = 5.0
"""How long one server waits for another's transaction on the same file; one takes milliseconds."""


def find_file(path: str) -> Path:
    """The file that `history.path` names: in the user's data folder when it is empty."""
    if path:
        return Path(os.path.expanduser(path)).absolute()
    return platformdirs.user_data_path("homebase-console", appauthor=False) / "history.sqlite3"


def open_for_writing(path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> sqlite3.Connection:
    """Open the file, made when it is not there, with its tables up to date.

    Only its owner may read a new one: it tells who works when. Raises HistoryError, OSError or sqlite3.Error.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_regular(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        check_version(read_version(connection), len(migrations))
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of effect in an empty file only
        connection.execute("PRAGMA journal_mode = WAL")
        # What is committed outlives the process; what the last seconds brought may go with the machine's power.
        connection.execute("PRAGMA synchronous = NORMAL")
        migrate(connection, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the file without ever changing it; a server may write meanwhile. Raises HistoryError."""
    try:
        _check_regular(path)
        if not path.exists() or not path.stat().st_size:  # a server that starts makes an empty one first
            raise HistoryMissing(path)
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
        try:
            _check_readable(connection, path)
        except BaseException:
            connection.close()
            raise
    except HistoryMissing:
        raise
    except (HistoryError, OSError, sqlite3.Error) as error:
        raise explain(path, error) from None
    connection.row_factory = sqlite3.Row
    return connection


def explain(path: Path, error: Exception) -> HistoryError:
    """What is wrong with the file, in a sentence that names it."""
    return HistoryError(f"The history at {path} cannot be used: {describe(error)}.")


def describe(error: Exception) -> str:
    """What went wrong, in the middle of a sentence."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).rstrip(".")


def is_same(path: Path, opened: os.stat_result) -> bool:
    """Whether the file at a path is still the one that was opened; a deleted one takes rows that nobody will see."""
    try:
        return os.path.samestat(path.stat(), opened)
    except OSError:
        return False


def _check_regular(path: Path) -> None:
    """A pipe would be waited for without end, and a device is no place to remember things."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise HistoryError("it is not a regular file; name another in [history] path")


def _check_readable(connection: sqlite3.Connection, path: Path) -> None:
    version = read_version(connection)
    if not version:
        raise HistoryMissing(path)
    check_version(version)
    if version < VERSION:
        raise HistoryError(
            f"its tables are version {version:,} and this homebase-console reads version {VERSION:,}; "
            "start the server once, which brings them up to date"
        )
