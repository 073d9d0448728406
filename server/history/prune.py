"""Deletes what is older than the policy keeps, in deletes so small that nothing waits for them."""

from __future__ import annotations

import sqlite3

from server.history.schema import TIMES

ROWS = 500
"""At once: about a millisecond, during which another server at the same file waits."""

PAGES = 200
"""Given back to the file system at once; of 4 KiB."""

DAY_S = 86_400.0

EVERY_S = DAY_S
"""Between two rounds of pruning."""


def prune_some(connection: sqlite3.Connection, now_s: float, keep_days: int) -> bool:
    """Delete some of what is too old; True when more may be left."""
    before_s = now_s - keep_days * DAY_S
    for table, column in TIMES.items():
        some = f"SELECT id FROM {table} WHERE {column} < ? ORDER BY {column} LIMIT ?"
        if connection.execute(f"DELETE FROM {table} WHERE id IN ({some})", (before_s, ROWS)).rowcount:
            # A script: `execute` would step it once, and each step gives back one page.
            connection.executescript(f"PRAGMA incremental_vacuum({PAGES})")
            return True
    return False
