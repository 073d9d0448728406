"""Remembers what a bench measured, from a process that serves nothing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from server.errors import HistoryError
from server.history.file import explain, open_for_writing
from server.history.records import BenchRecord
from server.history.schema import insert


def remember_bench(
    path: Path, kind: str, document: dict[str, Any], *, wall: Callable[[], float] = time.time
) -> BenchRecord:
    """Add one result, at once; a server may write at the same time. Raises HistoryError."""
    record = BenchRecord(time_s=wall(), kind=kind, document=document)
    try:
        with closing(open_for_writing(path)) as connection:
            insert(connection, [record])
    except (HistoryError, OSError, sqlite3.Error) as error:
        raise explain(path, error) from None
    return record
