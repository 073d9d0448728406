"""When an answer is over its slot is free: an agent's next turn never meets its own last one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from server.api.generation import stream_life


def start(engine: Any, request: Any) -> None:
    engine.say(request.id, "alpha STOP more")


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_end_is_told_when_the_engine_has_let_go(
    rig: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    rig.set_policy(policy__max_in_flight=1)
    monkeypatch.setattr(rig.engine, "cancel", rig.engine.cancelled.append)
    rig.engine.script = start
    asked = asyncio.ensure_future(rig.post(chat_body(stop="STOP", stream=streaming)))
    await rig.until(lambda: rig.engine.cancelled)
    await rig.settle()
    assert not asked.done()
    assert rig.admission.in_flight == 1
    rig.engine.end(rig.engine.only, "cancelled")
    answer = await asked
    assert rig.admission.in_flight == 0
    data = await answer.get_data()
    assert b'"finish_reason":"stop"' in data
    assert [end.outcome for end in rig.ends()] == ["stop"]


@pytest.mark.parametrize("end", ["never", "dies", "fails"])
async def test_an_answer_that_is_whole_is_given_whatever_becomes_of_the_engine(
    rig: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(stream_life, "LEAVE_S", 0.05)
    monkeypatch.setattr(rig.engine, "cancel", rig.engine.cancelled.append)
    rig.engine.script = start
    asked = asyncio.ensure_future(rig.post(chat_body(stop="STOP")))
    await rig.until(lambda: rig.engine.cancelled)
    if end == "dies":
        rig.engine.die("Gone.")
    elif end == "fails":
        rig.engine.end(rig.engine.only, "failed", "Broke.")
    choice = json.loads(await (await asked).get_data())["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("alpha ", "stop")
    assert [ended.outcome for ended in rig.ends()] == ["stop"]
