"""What was asked before, over HTTP."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from server.history.records import RequestRecord
from server.history.writer import HistoryWriter


def remember(path: Path, *ids: str, ago_s: float = 5.0) -> None:
    writer = HistoryWriter(path, lambda: 30)
    writer.start()
    for request_id in ids:
        writer.put(
            RequestRecord(
                arrived_s=time.time() - ago_s,
                request_id=request_id,
                session="s",
                parent_session=None,
                lane="parent",
                depth=0,
                client="pi/1",
                key="",
                model="nano",
                upstream="",
                prompt_tokens=3,
                cached_tokens=0,
                completion_tokens=2,
                max_tokens=None,
                decision="admitted",
                limit_value=None,
                used_value=None,
                status=None,
                retry_after_s=None,
                waited_s=0.0,
                ttft_s=0.1,
                prefill_tps=None,
                decode_tps=None,
                drafted_tokens=0,
                accepted_tokens=0,
                outcome="stop",
                detail="",
                duration_s=1.0,
            )
        )
    writer.close()


async def ask(rig: Any, query: str = "") -> tuple[int, Any]:
    answer = await rig.client.get(f"/homebase/history{query}")
    return answer.status_code, json.loads(await answer.get_data())


async def test_the_newest_of_a_time_are_told_oldest_first(rig: Any, tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite3"
    remember(path, "old", ago_s=7200)
    remember(path, "a", "b", "c")
    rig.set_policy(history__path=str(path))
    assert [each["request_id"] for each in (await ask(rig))[1]["requests"]] == ["a", "b", "c"]
    assert [each["request_id"] for each in (await ask(rig, "?limit=2"))[1]["requests"]] == ["b", "c"]
    assert [each["request_id"] for each in (await ask(rig, "?since=3h"))[1]["requests"]] == ["old", "a", "b", "c"]


async def test_no_file_yet_is_an_empty_list_and_no_history_is_an_error(rig: Any, tmp_path: Path) -> None:
    rig.set_policy(history__path=str(tmp_path / "none.sqlite3"))
    assert await ask(rig) == (200, {"requests": []})
    rig.set_policy(history__path=str(tmp_path / "none.sqlite3"), history__off=True)
    status, told = await ask(rig)
    assert (status, told["error"]["code"]) == (404, "history_missing")


@pytest.mark.parametrize("query", ["?since=yesterday", "?limit=0", "?limit=10001", "?limit=x", "?limit=-1", "?limit="])
async def test_a_query_that_means_nothing_is_told_with_what_is_allowed(rig: Any, query: str) -> None:
    status, told = await ask(rig, query)
    assert (status, told["error"]["param"]) == (400, query[1:].partition("=")[0])
