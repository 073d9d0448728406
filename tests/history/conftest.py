"""A writer over a file of the test's own, and records with plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.errors import HistoryMissing
from server.history.reader import HistoryReader
from server.history.records import RequestRecord
from server.history.writer import HistoryWriter

Start = Callable[..., HistoryWriter]
BuildRequest = Callable[..., RequestRecord]
ReadIds = Callable[[Path], list[str]]
WaitUntil = Callable[[str, Callable[[], object]], None]


def make_request(number: int = 1, **changes: Any) -> RequestRecord:
    plain: dict[str, Any] = {
        "arrived_s": 1000.0 + number,
        "request_id": f"req-{number}",
        "session": "s",
        "lane": "parent",
        "client": "opencode/1.18",
        "model": "nano",
        "prompt_tokens": 100,
        "decision": "admitted",
        "outcome": "stop",
    }
    return RequestRecord(**(plain | changes))


def wait(what: str, look: Callable[[], object]) -> None:
    until = time.monotonic() + 20.0
    while not look():
        assert time.monotonic() < until, f"not in time: {what}"
        time.sleep(0.01)


def ids_of(path: Path) -> list[str]:
    """In order of arrival; empty before there is a file."""
    try:
        with HistoryReader(path) as reader:
            return [request.request_id for request in reader.read_requests(0.0)]
    except HistoryMissing:
        return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "history.sqlite3"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Starts a writer that keeps everything; all are closed at the end."""
    writers: list[HistoryWriter] = []

    def start_one(file: Path = path, keep_days: int = 30, now_s: float = 1000.0, **options: Any) -> HistoryWriter:
        options = {"retry_s": 0.05} | options
        writer = HistoryWriter(file, lambda: keep_days, wall=lambda: now_s, **options)
        writers.append(writer)
        writer.start()
        return writer

    yield start_one
    for writer in writers:
        assert writer.close(10.0)


@pytest.fixture
def build_request() -> BuildRequest:
    return make_request


@pytest.fixture
def read_ids() -> ReadIds:
    return ids_of


@pytest.fixture
def wait_until() -> WaitUntil:
    return wait
