"""The sessions that the server remembers, over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any


async def test_a_parent_and_its_child_are_listed_with_what_they_used(rig: Any, chat_body: Any) -> None:
    rig.set_policy(policy__max_in_flight=4)
    tasks: list[asyncio.Task[Any]] = []
    for text, headers in (("four", {"x-session-id": "a"}), ("six", {"x-session-id": "b", "x-parent-session-id": "a"})):
        opened = set(rig.engine.open)
        tasks.append(asyncio.create_task(rig.post(chat_body(text), {**headers, "user-agent": "pi/1"})))
        await rig.until(lambda opened=opened: set(rig.engine.open) - opened)
    first, second = rig.engine.open
    rig.engine.say(first, "abc")
    rig.engine.end(first, "stop")
    await tasks[0]
    answer = await rig.client.get("/homebase/sessions")
    listed = {each["session"]: each for each in json.loads(await answer.get_data())["sessions"]}
    a, b = listed["a"], listed["b"]
    assert (a["lane"], a["depth"], a["in_flight"], a["completion_tokens"], a["last_outcome"]) == (
        "parent",
        0,
        0,
        3,
        "stop",
    )
    assert (b["lane"], b["depth"], b["in_flight"], b["parent_session"], b["root_session"]) == ("child", 1, 1, "a", "a")
    assert a["children"] == ["b"]
    rig.engine.end(second, "stop")
    await tasks[1]
