"""A bench's result is kept beside the requests, also while a server writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server.errors import HistoryError
from server.history.benches import remember_bench
from server.history.reader import HistoryReader

if TYPE_CHECKING:
    from tests.history.conftest import BuildRequest, ReadIds, Start, WaitUntil


def test_a_result_is_kept_while_a_server_writes(
    build_request: BuildRequest, read_ids: ReadIds, wait_until: WaitUntil, start: Start, path: Path
) -> None:
    writer = start()
    writer.put(build_request(1))
    result = remember_bench(path, "fan-out", {"streams": [1, 2], "decode_tps": 31.5}, wall=lambda: 2000.0)
    writer.put(build_request(2))
    wait_until("both rows", lambda: read_ids(path) == ["req-1", "req-2"])
    with HistoryReader(path) as reader:
        assert reader.read_benches() == [result]
        assert reader.read_benches(2001.0) == []
    assert (result.time_s, result.kind) == (2000.0, "fan-out")


def test_a_file_that_cannot_be_used_is_told(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(HistoryError, match="cannot be used: it is not a regular file"):
        remember_bench(path, "fan-out", {})
