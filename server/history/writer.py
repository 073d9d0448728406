"""Writes the history on a thread of its own, a few rows at a time. Whoever hands it rows never waits for a disk."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from server.errors import HistoryError
from server.history.file import describe, is_same, open_for_writing
from server.history.prune import EVERY_S, prune_some
from server.history.records import Record
from server.history.schema import insert

BATCH_S = 0.5
"""A row is written so soon; what is younger is lost with a process that is killed."""

BATCH_ROWS = 200
"""... or as soon as there are so many."""

QUEUED_ROWS = 5000
"""Rows that may wait for a disk that takes none, a few MB; further ones are dropped and counted."""

RETRY_S = 30.0
"""Until a file that could not be written is tried again."""

CLOSE_S = 0.5
"""For the last rows to be written at the end."""

log = logging.getLogger(__name__)


class HistoryWriter:
    """Owns the file for writing, from `start` to `close`. `put`, `prune_soon` and `dropped` are for any thread.

    A file that cannot be written costs rows and one line of the log, never a request.
    """

    def __init__(
        self,
        path: Path,
        read_keep_days: Callable[[], int],
        *,
        wall: Callable[[], float] = time.time,
        retry_s: float = RETRY_S,
        queued_rows: int = QUEUED_ROWS,
    ) -> None:
        self._path, self._read_keep_days = path, read_keep_days
        self._wall, self._retry_s = wall, retry_s
        self._rows: queue.Queue[Record | None] = queue.Queue(queued_rows)
        """None wakes the thread up."""
        self._batch: list[Record] = []
        self._connection: sqlite3.Connection | None = None
        self._opened: os.stat_result
        self._problem = ""
        self._dropped = self._dropped_told = 0
        self._prune_at_s = 0.0
        """By the monotonic clock, if nobody asks for it before that."""
        self._prune_asked = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history-writer", daemon=True)

    @property
    def dropped(self) -> int:
        """Rows that were never written, because too many waited."""
        return self._dropped

    @property
    def problem(self) -> str:
        """Why nothing is written at present; empty while all is well."""
        return self._problem

    def start(self) -> None:
        """Begin to write; the file is opened, and made, on the thread."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Hand over a row; it is dropped when too many wait."""
        try:
            self._rows.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def prune_soon(self) -> None:
        """Another number of days is kept now."""
        self._prune_asked.set()
        self._wake()

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Write what waits and let go of the file; False when that takes longer than the time given."""
        self._closing.set()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _wake(self) -> None:
        with contextlib.suppress(queue.Full):  # a full queue wakes it as well
            self._rows.put_nowait(None)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._gather()
            self._work()
            if self._problem:
                self._closing.wait(self._retry_s)
        while self._batch or not self._rows.empty():
            self._gather_waiting()
            self._work()
            if self._problem:
                break
        if lost := len(self._batch) + self._rows.qsize():
            log.warning("rows of the history that are lost at the end: %s (%s)", f"{lost:,}", self._problem)
        self._close_file()

    def _gather(self) -> None:
        """Wait for a row, or for the time to prune; then for more rows, but not for long."""
        if not self._batch:
            self._take(self._prune_wait_s)
        until_s = time.monotonic() + BATCH_S
        while self._batch and len(self._batch) < BATCH_ROWS and not self._closing.is_set():
            if not self._take(until_s - time.monotonic()):
                return

    def _gather_waiting(self) -> None:
        """Fill the batch with what waits."""
        while len(self._batch) < BATCH_ROWS and self._take(0.0):
            pass

    def _take(self, wait_s: float) -> bool:
        """Move one row into the batch; False when none came in time."""
        try:
            record = self._rows.get(timeout=wait_s) if wait_s > 0 else self._rows.get_nowait()
        except queue.Empty:
            return False
        if record is not None:
            self._batch.append(record)
        return True

    def _work(self) -> None:
        """Write the batch, and prune a little if it is time."""
        try:
            connection = self._open()
            if self._batch:
                insert(connection, self._batch)
                self._batch.clear()
            if self._prune_wait_s <= 0 and not self._closing.is_set():
                self._prune(connection)
        except (HistoryError, OSError, sqlite3.Error) as error:
            self._fail(error)
        else:
            self._recover()

    @property
    def _prune_wait_s(self) -> float:
        return 0.0 if self._prune_asked.is_set() else self._prune_at_s - time.monotonic()

    def _prune(self, connection: sqlite3.Connection) -> None:
        self._prune_asked.clear()  # first: who asks meanwhile has other days in mind than are read here
        if prune_some(connection, self._wall(), self._read_keep_days()):
            self._prune_asked.set()
        else:
            self._prune_at_s = time.monotonic() + EVERY_S

    def _open(self) -> sqlite3.Connection:
        """The connection; a new one when the file was deleted or replaced."""
        if self._connection is not None and not is_same(self._path, self._opened):
            self._close_file()
        if self._connection is None:
            self._connection = open_for_writing(self._path)
            self._opened = self._path.stat()
        return self._connection

    def _fail(self, error: Exception) -> None:
        self._close_file()
        reason = describe(error)
        if reason != self._problem:
            log.warning(
                "nothing is remembered for now: the history at %s cannot be written (%s); tried again every %.0f s",
                self._path,
                reason,
                self._retry_s,
            )
        self._problem = reason

    def _recover(self) -> None:
        if self._problem:
            log.info("the history at %s is written again", self._path)
            self._problem = ""
        if newly := self._dropped - self._dropped_told:
            log.warning("rows of the history that were dropped, because too many waited: %s", f"{newly:,}")
            self._dropped_told += newly

    def _close_file(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):  # a full or lost disk
                self._connection.close()
            self._connection = None
