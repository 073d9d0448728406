"""Reads the history, beside whoever writes it. Never changes it."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from server.history.file import explain, open_for_reading
from server.history.records import ADMITTED, BenchRecord, PolicyChangeRecord, RefusalCount, RequestRecord


class HistoryReader:
    """A read-only connection to one file, for the thread that made it. Raises HistoryError, at any method.

    Spans of time are in Unix time, `since_s` included and `until_s` not.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = open_for_reading(path)

    def __enter__(self) -> HistoryReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def read_requests(
        self,
        since_s: float,
        until_s: float = math.inf,
        *,
        refused_only: bool = False,
        newest: int | None = None,
    ) -> Generator[RequestRecord]:
        """Requests by arrival, oldest first; with `newest` only the last so many of them."""
        chosen = f"SELECT * FROM requests WHERE arrived_s >= :since AND arrived_s < :until{_REFUSED * refused_only}"
        query = f"SELECT * FROM ({chosen} ORDER BY arrived_s DESC, id DESC LIMIT :newest) ORDER BY arrived_s, id"
        given = {"since": since_s, "until": until_s, "admitted": ADMITTED, "newest": -1 if newest is None else newest}
        with self._explained():
            for row in self._connection.execute(query, given):
                yield _to_request(row)

    def count_refusals(
        self, since_s: float, until_s: float = math.inf, *, span_s: float = 3600.0
    ) -> list[RefusalCount]:
        """Refusals by code in spans of so many seconds; spans without any are left out."""
        query = (
            "SELECT CAST(arrived_s / :span AS INTEGER) * :span AS time_s, decision AS code, count(*) AS count"
            f" FROM requests WHERE arrived_s >= :since AND arrived_s < :until{_REFUSED} GROUP BY 1, 2 ORDER BY 1, 2"
        )
        given = {"since": since_s, "until": until_s, "admitted": ADMITTED, "span": span_s}
        with self._explained():
            rows = self._connection.execute(query, given).fetchall()
            return [msgspec.convert(dict(row), RefusalCount, strict=False) for row in rows]

    def read_policy_changes(self, since_s: float, until_s: float = math.inf) -> list[PolicyChangeRecord]:
        """Changed limits, oldest first."""
        query = "SELECT * FROM policy_changes WHERE time_s >= ? AND time_s < ? ORDER BY time_s, id"
        with self._explained():
            rows = self._connection.execute(query, (since_s, until_s)).fetchall()
            return [msgspec.convert(dict(row), PolicyChangeRecord) for row in rows]

    def read_benches(self, since_s: float = 0.0, until_s: float = math.inf) -> list[BenchRecord]:
        """What benches measured, oldest first."""
        query = "SELECT time_s, kind, document FROM benches WHERE time_s >= ? AND time_s < ? ORDER BY time_s, id"
        with self._explained():
            rows = self._connection.execute(query, (since_s, until_s)).fetchall()
            return [BenchRecord(time_s=at, kind=kind, document=msgspec.json.decode(text)) for at, kind, text in rows]

    @contextmanager
    def _explained(self) -> Generator[None]:
        """A damaged file may be noticed at any row."""
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise explain(self._path, error) from None


_REFUSED = " AND decision <> :admitted"


def _to_request(row: sqlite3.Row) -> RequestRecord:
    return msgspec.convert(dict(row), RequestRecord)
