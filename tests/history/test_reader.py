"""What can be asked of the history, and that reading changes nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server.errors import HistoryError, HistoryMissing
from server.history.file import find_file, open_for_writing
from server.history.reader import HistoryReader
from server.history.records import RefusalCount, RequestRecord
from server.history.schema import insert

if TYPE_CHECKING:
    from tests.history.conftest import BuildRequest


def fill(path: Path, *records: RequestRecord) -> None:
    connection = open_for_writing(path)
    insert(connection, records)
    connection.close()


def ids(reader: HistoryReader, *span: float, **options: object) -> list[str]:
    return [each.request_id for each in reader.read_requests(*span, **options)]  # pyright: ignore[reportArgumentType]


def test_requests_come_by_arrival_within_a_span(build_request: BuildRequest, path: Path) -> None:
    # A long one arrives first and is written last.
    fill(path, build_request(2), build_request(3), build_request(1))
    with HistoryReader(path) as reader:
        assert ids(reader, 0.0) == ["req-1", "req-2", "req-3"]
        assert ids(reader, 1002.0) == ["req-2", "req-3"]
        assert ids(reader, 1001.0, 1003.0) == ["req-1", "req-2"]
        assert ids(reader, 0.0, newest=2) == ["req-2", "req-3"]
        assert ids(reader, 5000.0) == []


def test_refusals_alone_and_by_code_over_time(build_request: BuildRequest, path: Path) -> None:
    refusals = [(10, "in_flight_full"), (20, "in_flight_full"), (30, "draining"), (3700, "in_flight_full")]
    records = [build_request(n, arrived_s=float(at), decision=code) for n, (at, code) in enumerate(refusals)]
    fill(path, *records, build_request(9, arrived_s=40.0))
    with HistoryReader(path) as reader:
        assert ids(reader, 0.0, refused_only=True) == ["req-0", "req-1", "req-2", "req-3"]
        assert reader.count_refusals(0.0) == [
            RefusalCount(0.0, "draining", 1),
            RefusalCount(0.0, "in_flight_full", 2),
            RefusalCount(3600.0, "in_flight_full", 1),
        ]
        assert reader.count_refusals(0.0, 25.0, span_s=20.0) == [
            RefusalCount(0.0, "in_flight_full", 1),
            RefusalCount(20.0, "in_flight_full", 1),
        ]


def test_acceptance_is_over_the_whole_stream(build_request: BuildRequest) -> None:
    assert build_request(drafted_tokens=8, accepted_tokens=6).acceptance_ratio == 0.75
    assert build_request().acceptance_ratio is None


def test_no_file_is_told_with_its_place(path: Path) -> None:
    with pytest.raises(HistoryError, match=r"no history at .*history\.sqlite3"):
        HistoryReader(path)
    assert not path.parent.exists()


def test_garbage_is_told_in_a_sentence(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"garbage " * 1000)
    with pytest.raises(HistoryError, match="not a database"):
        HistoryReader(path)


def test_a_file_damaged_in_the_middle_is_told_where_it_is_noticed(build_request: BuildRequest, path: Path) -> None:
    fill(path, *(build_request(number, detail="x" * 300) for number in range(500)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xa5" * (size // 2))
    with HistoryReader(path) as reader, pytest.raises(HistoryError, match=r"cannot be used: "):
        list(reader.read_requests(0.0))


def test_a_value_that_no_release_wrote_is_told(build_request: BuildRequest, path: Path) -> None:
    fill(path, build_request(1))
    connection = open_for_writing(path)
    connection.execute("UPDATE requests SET lane = 'sideways'")
    connection.close()
    with HistoryReader(path) as reader, pytest.raises(HistoryError, match="sideways"):
        list(reader.read_requests(0.0))


def test_a_path_with_signs_of_an_address_is_read_as_it_is(build_request: BuildRequest, tmp_path: Path) -> None:
    path = tmp_path / "50% of #1?mode=rw" / "history.sqlite3"
    fill(path, build_request(1))
    with HistoryReader(path) as reader:
        assert ids(reader, 0.0) == ["req-1"]


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_file("~/h.db") == tmp_path / "h.db"
    assert find_file("here/h.db") == tmp_path / "here" / "h.db"
    assert find_file("").name == "history.sqlite3"
    assert find_file("").parent.name == "homebase-console"


def test_a_file_that_is_just_being_made_is_none_yet_or_whole(path: Path) -> None:
    """Files are made one after another while somebody looks at each as early as can be."""
    files = [path.with_name(f"{number}.sqlite3") for number in range(30)]
    faults: list[Exception] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            for file in files:
                try:
                    HistoryReader(file).close()
                except HistoryMissing:
                    pass
                except Exception as error:
                    faults.append(error)

    looker = threading.Thread(target=look)
    looker.start()
    for file in files:
        open_for_writing(file).close()
    is_over.set()
    looker.join()
    assert faults == []
