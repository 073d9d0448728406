"""The tables of the history, and how older files come to have them.

A migration that has shipped is never edited; a new one is added behind it. Its place is the version it leads to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from server.errors import HistoryError
from server.history.records import BenchRecord, PolicyChangeRecord, Record, RequestRecord

APPLICATION_ID = 0x48424348
"""`HBCH`, in the header of each file of ours: nobody else's database is ever written to."""

TABLES: dict[type[Record], str] = {
    RequestRecord: "requests",
    PolicyChangeRecord: "policy_changes",
    BenchRecord: "benches",
}

TIMES = {"requests": "arrived_s", "policy_changes": "time_s", "benches": "time_s"}
"""The column by which each table is read and pruned."""

Migration = Sequence[str]
"""Statements, run in one transaction."""

MIGRATIONS: tuple[Migration, ...] = (
    (
        """
        CREATE TABLE requests (
            id INTEGER PRIMARY KEY,
            arrived_s REAL NOT NULL,
            request_id TEXT NOT NULL,
            session TEXT NOT NULL,
            parent_session TEXT,
            lane TEXT NOT NULL,
            depth INTEGER NOT NULL,
            client TEXT NOT NULL,
            key TEXT NOT NULL,
            model TEXT NOT NULL,
            upstream TEXT NOT NULL,
            prompt_tokens INTEGER,
            cached_tokens INTEGER NOT NULL,
            completion_tokens INTEGER NOT NULL,
            max_tokens INTEGER,
            decision TEXT NOT NULL,
            limit_key TEXT NOT NULL,
            limit_value REAL,
            used_value REAL,
            status INTEGER,
            retry_after_s INTEGER,
            waited_s REAL NOT NULL,
            ttft_s REAL,
            prefill_tps REAL,
            decode_tps REAL,
            drafted_tokens INTEGER NOT NULL,
            accepted_tokens INTEGER NOT NULL,
            outcome TEXT,
            detail TEXT NOT NULL,
            duration_s REAL NOT NULL
        )
        """,
        "CREATE INDEX requests_by_time ON requests (arrived_s)",
        """
        CREATE TABLE policy_changes (
            id INTEGER PRIMARY KEY,
            time_s REAL NOT NULL,
            limit_key TEXT NOT NULL,
            old_value TEXT NOT NULL,
            new_value TEXT NOT NULL,
            origin TEXT NOT NULL,
            by TEXT NOT NULL
        )
        """,
        "CREATE INDEX policy_changes_by_time ON policy_changes (time_s)",
        """
        CREATE TABLE benches (
            id INTEGER PRIMARY KEY,
            time_s REAL NOT NULL,
            kind TEXT NOT NULL,
            document TEXT NOT NULL
        )
        """,
        "CREATE INDEX benches_by_time ON benches (time_s)",
    ),
)

VERSION = len(MIGRATIONS)

_LARGEST = 2**63 - 1
"""SQLite's largest integer; a client may ask for more tokens than that."""


def read_version(connection: sqlite3.Connection) -> int:
    """The version of a file's tables, 0 for an empty file. Raises HistoryError for a database that is not ours."""
    # In one statement: between two of them another server may have made the tables.
    mark, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if mark != APPLICATION_ID and (mark or version or tables):
        raise HistoryError("it is a database of another program and is left alone; name another file in [history] path")
    return int(version)


def check_version(version: int, newest: int = VERSION) -> None:
    """Raises HistoryError for tables of a later release."""
    if version > newest:
        raise HistoryError(
            f"its tables are version {version:,} and this homebase-console knows version {newest:,}; it is left alone: "
            "use the newer release, or name another file in [history] path"
        )


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring a file's tables up to date, all or nothing. The connection is in autocommit mode."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        version = read_version(connection)  # another server may have been here since we looked
        check_version(version, len(migrations))
        if version == len(migrations):
            return
        for statements in migrations[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")


def insert(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Add rows, all or none."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for record in records:
            connection.execute(_INSERTS[type(record)], _to_row(record))


def _write_insert(kind: type[Record]) -> str:
    names = kind.__struct_fields__
    return f"INSERT INTO {TABLES[kind]} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"


_INSERTS = {kind: _write_insert(kind) for kind in TABLES}


def _to_row(record: Record) -> dict[str, Any]:
    return {name: _to_value(value) for name, value in msgspec.structs.asdict(record).items()}


def _to_value(value: Any) -> Any:
    """What SQLite can hold, whatever a client sent."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case int():
            return max(-_LARGEST, min(_LARGEST, value))
        case dict():
            return msgspec.json.encode(value).decode()
        case _:
            return value
