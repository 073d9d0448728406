"""Tables and versions: what a struct holds comes back; older files are brought up to date, newer ones left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest

from server.errors import HistoryError, HistoryMissing
from server.events import Lane
from server.history.file import open_for_reading, open_for_writing
from server.history.reader import HistoryReader
from server.history.records import BenchRecord, PolicyChangeRecord, RequestRecord
from server.history.schema import APPLICATION_ID, MIGRATIONS, TABLES, VERSION, insert, migrate, read_version

if TYPE_CHECKING:
    from tests.history.conftest import BuildRequest


FULL = RequestRecord(
    arrived_s=1.5,
    request_id="req-1",
    session="s",
    parent_session="p",
    lane="child",
    depth=2,
    client="c",
    key="k",
    model="m",
    upstream="u",
    prompt_tokens=1,
    cached_tokens=2,
    completion_tokens=3,
    max_tokens=4,
    decision="in_flight_full",
    limit_key="policy.max_in_flight",
    limit_value=5,
    used_value=6,
    status=429,
    retry_after_s=7,
    waited_s=8.5,
    ttft_s=9.5,
    prefill_tps=10.5,
    decode_tps=11.5,
    drafted_tokens=13,
    accepted_tokens=12,
    outcome="length",
    detail="in words",
    duration_s=14.5,
)


def test_every_field_comes_back(path: Path) -> None:
    change = PolicyChangeRecord(
        time_s=2.0, limit_key="policy.max_in_flight", old_value="2", new_value="3", origin="api", by="alice"
    )
    bench = BenchRecord(time_s=3.0, kind="fan-out", document={"streams": [1, 2], "machine": "é"})
    connection = open_for_writing(path)
    insert(connection, [FULL, change, bench])
    connection.close()
    assert all(getattr(FULL, name) not in (None, "", 0) for name in FULL.__struct_fields__)
    with HistoryReader(path) as reader:
        assert list(reader.read_requests(0.0)) == [FULL]
        assert reader.read_policy_changes(0.0) == [change]
        assert reader.read_benches() == [bench]


def test_tables_have_a_column_for_each_field_and_no_other(path: Path) -> None:
    connection = open_for_writing(path)
    for kind, table in TABLES.items():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        assert columns == ["id", *kind.__struct_fields__]
    connection.close()


@pytest.mark.parametrize("lane", get_args(Lane))
def test_every_lane_can_be_kept(lane: Lane, path: Path) -> None:
    connection = open_for_writing(path)
    insert(connection, [msgspec.structs.replace(FULL, lane=lane)])
    connection.close()
    with HistoryReader(path) as reader:
        assert [request.lane for request in reader.read_requests(0.0)] == [lane]


def test_one_row_that_fails_keeps_the_others_out(path: Path) -> None:
    connection = open_for_writing(path)
    bad = msgspec.structs.replace(FULL, session=None)
    with pytest.raises(sqlite3.IntegrityError):
        insert(connection, [FULL, bad])
    insert(connection, [FULL])
    connection.close()
    with HistoryReader(path) as reader:
        assert len(list(reader.read_requests(0.0))) == 1


NEXT = (*MIGRATIONS, ("ALTER TABLE requests ADD COLUMN shard TEXT NOT NULL DEFAULT 'none'",))
"""What a later release might add."""


def test_an_older_file_is_brought_up_to_date_with_its_rows(build_request: BuildRequest, path: Path) -> None:
    connection = open_for_writing(path)
    insert(connection, [build_request(1), build_request(2)])
    connection.close()
    connection = open_for_writing(path, NEXT)
    assert read_version(connection) == VERSION + 1
    rows = connection.execute("SELECT request_id, shard FROM requests ORDER BY id").fetchall()
    assert rows == [("req-1", "none"), ("req-2", "none")]
    connection.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(build_request: BuildRequest, path: Path) -> None:
    connection = open_for_writing(path)
    insert(connection, [build_request(1)])
    broken = (*MIGRATIONS, ("ALTER TABLE requests ADD COLUMN shard TEXT", "ALTER TABLE missing ADD COLUMN x"))
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, broken)
    assert read_version(connection) == VERSION
    assert "shard" not in [row[1] for row in connection.execute("PRAGMA table_info(requests)")]
    connection.close()


def test_a_newer_file_is_left_alone_by_writer_and_reader(path: Path) -> None:
    open_for_writing(path, NEXT).close()
    before = path.read_bytes()
    with pytest.raises(HistoryError, match=r"version 2 .*knows version 1.*newer release"):
        open_for_writing(path)
    with pytest.raises(HistoryError, match=r"cannot be used: its tables are version 2"):
        open_for_reading(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_file_without_tables_is_none_yet(is_empty: bool, path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    if not is_empty:
        connection = sqlite3.connect(path)
        connection.execute("VACUUM")
        connection.close()
    with pytest.raises(HistoryMissing, match="There is no history at"):
        open_for_reading(path)


def test_a_file_older_than_the_reader_says_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_for_writing(path).close()
    monkeypatch.setattr("server.history.file.VERSION", VERSION + 1)
    with pytest.raises(HistoryError, match="start the server once"):
        open_for_reading(path)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE theirs (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
)
def test_another_programs_database_is_never_written_to(statement: str, path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="another program"):
        open_for_writing(path)
    assert path.read_bytes() == before


def test_the_header_says_whose_file_it_is(path: Path) -> None:
    open_for_writing(path).close()
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"HBCH"
