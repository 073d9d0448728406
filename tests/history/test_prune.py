"""What is too old goes, a little at a time; the rest stays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from server.history.file import open_for_writing
from server.history.prune import DAY_S, ROWS, prune_some
from server.history.reader import HistoryReader
from server.history.records import BenchRecord, PolicyChangeRecord
from server.history.schema import insert

if TYPE_CHECKING:
    from tests.history.conftest import BuildRequest


def build_change(time_s: float) -> PolicyChangeRecord:
    return PolicyChangeRecord(time_s=time_s, limit_key="k", old_value="1", new_value="2", origin="file")


def test_every_table_loses_what_is_older_than_the_days_kept(build_request: BuildRequest, path: Path) -> None:
    now_s = 100 * DAY_S
    old, young = now_s - 30 * DAY_S - 1, now_s - 30 * DAY_S + 1
    connection = open_for_writing(path)
    for at in (old, young):
        rows = [build_request(1, arrived_s=at), build_change(at), BenchRecord(time_s=at, kind="b", document={})]
        insert(connection, rows)
    rounds = 0
    while prune_some(connection, now_s, 30):
        rounds += 1
    assert rounds == 3
    connection.close()
    with HistoryReader(path) as reader:
        assert [each.arrived_s for each in reader.read_requests(0.0)] == [young]
        assert [each.time_s for each in reader.read_policy_changes(0.0)] == [young]
        assert [each.time_s for each in reader.read_benches()] == [young]


def test_deletes_are_small_and_the_space_is_given_back(build_request: BuildRequest, path: Path) -> None:
    connection = open_for_writing(path)
    insert(connection, [build_request(number, arrived_s=float(number), detail="x" * 300) for number in range(3000)])
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    full = path.stat().st_size
    counts: list[int] = []
    while prune_some(connection, 100 * DAY_S, 30):
        counts.append(connection.execute("SELECT count(*) FROM requests").fetchone()[0])
    assert counts == [3000 - ROWS * (done + 1) for done in range(6)]
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size < full / 10
    connection.close()
