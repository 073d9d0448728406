from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from server.snapshot import Snapshot


async def test_the_snapshot_is_given_whole_and_reads_back(rig: Any, chat_body: Any) -> None:
    task = asyncio.create_task(rig.post(chat_body("hello", max_tokens=7)))
    await rig.until(lambda: rig.engine.open)
    answer = await rig.client.get("/homebase/snapshot")
    data = await answer.get_data()
    assert answer.headers["content-type"] == "application/json"
    document = json.loads(data)
    assert {"streams", "admission", "policy", "model", "memory", "rates"} <= document.keys()
    assert {
        "id", "session", "lane", "client", "phase", "context_tokens", "prompt_tokens", "cached_tokens",
        "completion_tokens", "max_tokens", "prefill_done_tokens", "prefill_tps", "decode_tps", "ttft_s", "age_s",
    } <= document["streams"][0].keys()  # fmt: skip
    assert document["admission"]["in_flight"] == 1
    assert msgspec.json.decode(data, type=Snapshot).streams[0].prompt_tokens == 5
    rig.engine.end(rig.engine.only, "stop")
    await task
