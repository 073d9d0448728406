"""Streams grouped by whose conversation they are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from server.api.operator.sessions import group_sessions


async def test_a_sessions_streams_are_summed_up(rig: Any, chat_body: Any) -> None:
    rig.set_policy(policy__max_in_flight=4)
    tasks: list[asyncio.Task[Any]] = []
    for text, session in (("four", "a"), ("seconds", "a"), ("other", "b")):
        opened = set(rig.engine.open)
        tasks.append(asyncio.create_task(rig.post(chat_body(text), {"x-session-id": session, "user-agent": "pi/1"})))
        await rig.until(lambda opened=opened: set(rig.engine.open) - opened)
    first, second, third = rig.engine.open
    rig.engine.say(first, "abc")
    rig.engine.end(first, "stop")
    await tasks[0]
    answer = await rig.client.get("/homebase/sessions")
    a, b = json.loads(await answer.get_data())["sessions"]
    assert (a["session"], b["session"]) == ("a", "b")
    assert (a["client"], a["in_flight"], a["prompt_tokens"], a["completion_tokens"]) == ("pi/1", 1, 11, 3)
    assert (set(a["streams"]), b["streams"]) == ({first, second}, [third])
    for request_id in (second, third):
        rig.engine.end(request_id, "stop")
    await asyncio.gather(*tasks)


async def test_two_keys_never_share_one_and_the_newest_stream_tells_the_lane(rig: Any, chat_body: Any) -> None:
    task = asyncio.create_task(rig.post(chat_body("hello")))
    await rig.until(lambda: rig.engine.open)
    (stream,) = rig.streams()
    change = msgspec.structs.replace
    older = change(stream, id="req-old", lane="auxiliary", age_s=1.0, outcome="stop", finished_ago_s=60.0)
    theirs = change(stream, id="req-2", key="bob")
    ours, other = group_sessions([change(stream, lane="child"), older, theirs])
    assert (ours.lane, ours.in_flight, ours.streams) == ("child", 1, (stream.id, "req-old"))
    assert (other.key, other.streams) == ("bob", ("req-2",))
    assert group_sessions([]) == ()
    rig.engine.end(rig.engine.only, "stop")
    await task
