"""Streams of this dialect through the whole application, with a scripted engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from server.api.sse import UNREAD_MOST_BYTES


async def test_a_stream_ends_with_the_same_object_and_no_line_behind_it(
    rig: Any, ask: Any, speak: Any, read_events: Any, read_response: Any
) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    whole = read_response(await (await ask({"input": "hi"})).get_data())
    answer = await ask({"input": "hi", "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    data = await answer.get_data()
    assert b"[DONE]" not in data
    events = read_events(data)
    last = events[-1]
    assert last["type"] == "response.completed"
    changing = ("id", "created_at", "completed_at", "output")
    assert {k: v for k, v in last["response"].items() if k not in changing} == {
        k: v for k, v in whole.items() if k not in changing
    }
    assert last["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert [event["response"]["id"] for event in events if "response" in event] == [last["response"]["id"]] * 3
    assert [end.outcome for end in rig.ends()] == ["stop", "stop"]


@pytest.mark.parametrize(
    ("script", "status", "code", "kind", "outcome"),
    [
        (
            lambda engine, request: (engine.say(request.id, "ab"), engine.die("Gone.")),
            "failed",
            "server_error",
            "engine_dead",
            "failed",
        ),
        (
            lambda engine, request: (engine.say(request.id, "ab"), engine.end(request.id, "failed", "Broke.")),
            "failed",
            "server_error",
            "sequence_failed",
            "failed",
        ),
        (
            lambda engine, request: (engine.say(request.id, "ab"), engine.end(request.id, "cancelled")),
            "cancelled",
            "invalid_prompt",
            "stream_stopped",
            "cancelled",
        ),
    ],
)
async def test_a_failure_midway_is_the_last_event(
    rig: Any, ask: Any, read_events: Any, script: Any, status: str, code: str, kind: str, outcome: str
) -> None:
    rig.engine.script = script
    events = read_events(await (await ask({"input": "hi", "stream": True})).get_data())
    last = events[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == status
    assert (last["response"]["error"]["code"], last["response"]["error"]["type"]) == (code, kind)
    assert last["response"]["output"][0]["content"][0]["text"] == "ab"
    assert [end.outcome for end in rig.ends()] == [outcome]
    assert rig.admission.in_flight == 0


async def test_an_unforeseen_fault_midway_is_told_too(
    rig: Any, ask: Any, speak: Any, read_events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.engine.script = speak("x")
    monkeypatch.setattr("server.api.generation.reply.Reply.fold", lambda *_: 1 / 0)
    events = read_events(await (await ask({"input": "hi", "stream": True})).get_data())
    assert events[-1]["response"]["error"]["type"] == "internal_error"
    assert rig.admission.in_flight == 0


@pytest.mark.parametrize("turns", range(0, 60, 6))
async def test_a_client_that_goes_leaves_nothing(rig: Any, ask: Any, turns: int) -> None:
    async with rig.client.request("/v1/responses", method="POST") as connection:
        await connection.send(json.dumps({"input": "hi", "stream": turns % 12 == 0}).encode())
        await connection.send_complete()
        await rig.settle(turns)
        await connection.disconnect()
    await rig.until(lambda: rig.admission.in_flight == 0 and not rig.engine.open)
    assert [end.outcome for end in rig.ends()] == ["cancelled"] * rig.admission.admitted_total
    for request_id in rig.engine.requests:
        answer = await rig.client.get(f"/v1/responses/resp_{request_id.removeprefix('req-')}")
        assert answer.status_code == 404


async def test_signs_of_life_are_events_while_nothing_can_be_said(rig: Any, ask: Any, read_events: Any) -> None:
    rig.set_policy(server__keep_alive_s=0.5)
    answer = asyncio.create_task(ask({"input": "hi", "stream": True}))
    await rig.until(lambda: rig.engine.open)
    await asyncio.sleep(1.2)
    rig.engine.say(rig.engine.only, "x")
    rig.engine.end(rig.engine.only, "stop")
    kinds = [event["type"] for event in read_events(await (await answer).get_data())]
    assert kinds[:4] == ["response.created", *["response.in_progress"] * 3]


async def test_much_at_once_does_not_make_a_reader_look_dead(rig: Any, ask: Any) -> None:
    rig.engine.script = lambda engine, request: engine.say(request.id, "x" * 8000)
    asked = {"input": "hi", "stream": True, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = asyncio.create_task(ask(asked))
    await rig.until(lambda: rig.engine.open)
    await rig.settle()
    rig.engine.end(rig.engine.only, "stop")
    frames = (await (await answer).get_data()).split(b"\n\n")
    assert max(len(frame) for frame in frames if b"text.delta" in frame) > UNREAD_MOST_BYTES
    assert frames[-2].startswith(b"event: response.completed")
