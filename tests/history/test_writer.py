"""The writer's thread: what is written and when, and that no disk can hold anybody up."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server.history import writer as module
from server.history.file import open_for_writing
from server.history.reader import HistoryReader

if TYPE_CHECKING:
    from tests.history.conftest import BuildRequest, ReadIds, Start, WaitUntil


ROOT = Path(__file__).parents[2]


def test_rows_are_in_the_file_without_the_writer_being_closed(
    build_request: BuildRequest, read_ids: ReadIds, wait_until: WaitUntil, start: Start, path: Path
) -> None:
    writer = start()
    for number in range(3):
        writer.put(build_request(number))
    wait_until("three rows", lambda: len(read_ids(path)) == 3)
    assert read_ids(path) == ["req-0", "req-1", "req-2"]
    assert (writer.dropped, writer.problem) == (0, "")


def test_closing_writes_all_that_waits(
    build_request: BuildRequest, read_ids: ReadIds, start: Start, path: Path
) -> None:
    writer = start()
    for number in range(1500):
        writer.put(build_request(number))
    assert writer.close(20.0)
    assert len(read_ids(path)) == 1500


def test_rows_are_written_in_batches(
    build_request: BuildRequest, start: Start, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    insert = module.insert

    def count(connection: sqlite3.Connection, records: list[object]) -> None:
        sizes.append(len(records))
        insert(connection, records)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(module, "insert", count)
    writer = start()
    for number in range(450):
        writer.put(build_request(number))
    assert writer.close(20.0)
    assert sum(sizes) == 450
    assert max(sizes) == module.BATCH_ROWS
    assert len(sizes) < 10


def test_only_its_owner_may_read_the_file(
    build_request: BuildRequest, read_ids: ReadIds, wait_until: WaitUntil, start: Start, path: Path
) -> None:
    start().put(build_request())
    wait_until("a row", lambda: read_ids(path))
    for file in path.parent.iterdir():  # what SQLite puts beside it as well
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_full_queue_drops_and_counts_and_never_waits(
    build_request: BuildRequest,
    read_ids: ReadIds,
    wait_until: WaitUntil,
    start: Start,
    path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    blocker = open_for_writing(path)
    blocker.execute("BEGIN IMMEDIATE")
    writer = start(queued_rows=10)
    writer.put(build_request(0))
    wait_until("the writer waits for the lock", writer._rows.empty)
    time.sleep(module.BATCH_S + 0.1)  # its batch is closed and waits for the other's transaction
    for number in range(1, 31):
        writer.put(build_request(number))
    assert writer.dropped == 20
    blocker.execute("ROLLBACK")
    blocker.close()
    wait_until("what was kept is written", lambda: len(read_ids(path)) == 11)
    writer.put(build_request(99))
    wait_until("the line", lambda: "because too many waited: 20" in caplog.text)


def test_what_a_client_sent_can_always_be_written(build_request: BuildRequest, start: Start, path: Path) -> None:
    writer = start()
    writer.put(build_request(1, session="half \ud800 a character", max_tokens=10**40, decision="in_flight_full"))
    assert writer.close(10.0)
    with HistoryReader(path) as reader:
        (row,) = reader.read_requests(0.0)
    assert row.session == "half \\ud800 a character"
    assert row.max_tokens == 2**63 - 1


@pytest.mark.parametrize("made", ["garbage", "a folder", "another program's", "a later release's", "a pipe"])
def test_a_file_that_cannot_be_used_is_left_alone_told_once_and_tried_again(
    build_request: BuildRequest,
    read_ids: ReadIds,
    wait_until: WaitUntil,
    made: str,
    start: Start,
    path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    path.parent.mkdir()
    match made:
        case "garbage":
            path.write_bytes(b"no database at all, but long enough to be one " * 100)
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case _:
            with sqlite3.connect(path) as connection:
                connection.execute("CREATE TABLE requests (theirs)")
                if made == "a later release's":
                    connection.execute("PRAGMA application_id = 0x48424348")
                    connection.execute("PRAGMA user_version = 99")
            connection.close()
    before = path.read_bytes() if path.is_file() else b""
    writer = start()
    writer.put(build_request(1))
    wait_until("a problem", lambda: writer.problem)
    writer.put(build_request(2))
    time.sleep(0.5)  # ten more tries
    told = [record for record in caplog.records if "nothing is remembered" in record.message]
    assert len(told) == 1
    assert str(path) in told[0].message
    if path.is_file():
        assert path.read_bytes() == before
    path.rename(path.with_name("moved away"))
    wait_until("both rows are written after all", lambda: not writer.problem and len(read_ids(path)) == 2)
    assert "is written again" in caplog.text


def test_a_file_damaged_while_it_is_open_costs_rows_and_nothing_else(
    build_request: BuildRequest, read_ids: ReadIds, wait_until: WaitUntil, start: Start, path: Path
) -> None:
    writer = start()
    writer.put(build_request(1))
    wait_until("a row", lambda: read_ids(path))
    with path.open("r+b") as file:
        file.truncate(100)
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).write_bytes(b"\xff" * 64)
    writer.put(build_request(2))
    wait_until("it is noticed", lambda: writer.problem)
    for file in path.parent.iterdir():
        file.unlink()
    wait_until("a new file", lambda: not writer.problem)
    assert read_ids(path) == ["req-2"]


def test_after_its_file_was_deleted_it_makes_a_new_one(
    build_request: BuildRequest, read_ids: ReadIds, wait_until: WaitUntil, start: Start, path: Path
) -> None:
    writer = start()
    writer.put(build_request(1))
    wait_until("a row", lambda: read_ids(path))
    for file in path.parent.iterdir():
        file.unlink()
    writer.put(build_request(2))
    wait_until("a new file", lambda: read_ids(path) == ["req-2"])


def test_a_folder_that_cannot_be_made_is_told(wait_until: WaitUntil, start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    writer = start()
    wait_until("a problem", lambda: writer.problem)


def test_a_device_that_is_full_is_no_place(wait_until: WaitUntil, start: Start) -> None:
    writer = start(Path("/dev/full"))
    wait_until("a problem", lambda: "regular file" in writer.problem)


def test_two_servers_at_one_file(build_request: BuildRequest, read_ids: ReadIds, start: Start, path: Path) -> None:
    writers = [start(), start()]
    for number in range(200):
        for place, writer in enumerate(writers):
            writer.put(build_request(number, request_id=f"{place}-{number}"))
    for writer in writers:
        assert writer.close(20.0)
    assert len(set(read_ids(path))) == 400


def test_readers_and_the_writer_do_not_hold_each_other_up(
    build_request: BuildRequest, read_ids: ReadIds, wait_until: WaitUntil, start: Start, path: Path
) -> None:
    writer = start()
    writer.put(build_request(0))
    wait_until("a row", lambda: read_ids(path))
    faults: list[Exception] = []
    done = threading.Event()

    def read() -> None:
        try:
            seen = 0
            while not done.is_set():
                count = len(read_ids(path))
                assert count >= seen
                seen = count
        except Exception as error:
            faults.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    with HistoryReader(path) as slow:
        rows = slow.read_requests(0.0)
        next(rows)  # a reader that stays in the middle
        for number in range(1, 500):
            writer.put(build_request(number))
        assert writer.close(20.0)
        rows.close()
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []
    assert len(read_ids(path)) == 500


KILLED = """
import sys, time
from pathlib import Path
from conftest import make_request as build_request
from server.history.writer import HistoryWriter

writer = HistoryWriter(Path(sys.argv[1]), lambda: 30, wall=lambda: 1000.0)
writer.start()
number = 0
while True:
    writer.put(build_request(number))
    print(number, time.monotonic(), flush=True)
    number += 1
    time.sleep(0.002)
"""


def test_what_is_older_than_a_second_outlives_a_kill(read_ids: ReadIds, wait_until: WaitUntil, path: Path) -> None:
    here = str(Path(__file__).parent)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{here}"},
    )
    try:
        wait_until("many rows", lambda: len(read_ids(path)) > 100)
        # As long as no new batch is through, nothing more may be lost than what came since this one.
        seen = len(read_ids(path))
        wait_until("one more batch", lambda: len(read_ids(path)) > seen)
    finally:
        child.send_signal(signal.SIGKILL)
        out, _ = child.communicate(timeout=20)
    put = [float(line.split()[1]) for line in out.splitlines() if len(line.split()) == 2]
    kept = read_ids(path)
    assert kept == [f"req-{number}" for number in range(len(kept))]
    assert len(kept) > seen
    assert len(put) >= len(kept)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


FULL = """
import resource, sys, time
from pathlib import Path
from conftest import ids_of as read_ids
from conftest import make_request as build_request
from conftest import wait as wait_until
from server.history.writer import HistoryWriter

path = Path(sys.argv[1])
writer = HistoryWriter(path, lambda: 30, wall=lambda: 1000.0, retry_s=0.1)
writer.start()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
writer.put(build_request(0))
wait_until("a row", lambda: len(read_ids(path)) == 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
number = 1
while not writer.problem:
    writer.put(build_request(number, detail="x" * 200))
    number += 1
    time.sleep(0.001)
print(writer.problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
wait_until("all is written", lambda: not writer.problem)
assert writer.close(10.0)
assert len(read_ids(path)) + writer.dropped == number, (len(read_ids(path)), writer.dropped, number)
assert writer.dropped == 0
"""


def test_a_full_disk_costs_nothing_once_there_is_room_again(path: Path) -> None:
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{here}"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != ""


def test_pruning_runs_at_the_start_and_when_other_days_are_kept(
    build_request: BuildRequest, read_ids: ReadIds, wait_until: WaitUntil, start: Start, path: Path
) -> None:
    connection = open_for_writing(path)
    module.insert(connection, [build_request(number, arrived_s=float(number)) for number in range(2000)])
    connection.close()
    days = [1]
    writer = module.HistoryWriter(path, lambda: days[0], wall=lambda: 86_400.0 * 2 + 1000)
    writer.start()
    wait_until("all old ones are gone", lambda: read_ids(path) == [])
    writer.put(build_request(1, arrived_s=86_400.0 * 1.5))
    wait_until("a younger one is written", lambda: len(read_ids(path)) == 1)
    days[0] = 0
    writer.prune_soon()
    wait_until("it is gone as well", lambda: read_ids(path) == [])
    assert writer.close(10.0)
