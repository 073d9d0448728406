from __future__ import annotations

import json
from typing import Any

import pytest


def parse(data: bytes) -> list[Any]:
    """The events of a stream, JSON decoded; comments are left out."""
    events: list[Any] = []
    for block in data.decode().split("\n\n"):
        if block and not block.startswith(":"):
            assert block.startswith("data: ")
            payload = block.removeprefix("data: ")
            events.append(payload if payload == "[DONE]" else json.loads(payload))
    return events


def text_of(events: list[Any]) -> str:
    chunks = [event for event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def reasons_of(events: list[Any]) -> list[str]:
    chunks = [event for event in events if isinstance(event, dict) and event.get("choices")]
    return [reason for chunk in chunks if (reason := chunk["choices"][0]["finish_reason"])]


async def stream(rig: Any, body: dict[str, Any]) -> list[Any]:
    answer = await rig.post({**body, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    return parse(await answer.get_data())


async def test_a_stream_has_role_text_one_reason_and_the_end(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    events = await stream(rig, chat_body())
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert text_of(events) == "Hello wörld"
    assert reasons_of(events) == ["stop"]
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_no_usage_comes_unasked(rig: Any, chat_body: Any, speak: Any, options: Any) -> None:
    rig.engine.script = speak("x")
    events = await stream(rig, chat_body(stream_options=options))
    assert not any("usage" in event for event in events[:-1])


async def test_usage_comes_once_before_the_end_and_equals_that_of_the_whole_answer(
    rig: Any, chat_body: Any, speak: Any
) -> None:
    rig.engine.script = speak("Hello")
    events = await stream(rig, chat_body(stream_options={"include_usage": True}))
    whole = json.loads(await (await rig.post(chat_body())).get_data())
    with_usage = [event for event in events[:-1] if "usage" in event]
    assert with_usage == [events[-2]]
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == whole["usage"]


@pytest.mark.parametrize("outcome", ["stop", "length"])
@pytest.mark.parametrize("stop", [None, ["rld"], ["never"]])
async def test_the_pieces_together_are_the_whole_answer(
    rig: Any, chat_body: Any, speak: Any, outcome: Any, stop: Any
) -> None:
    data = "Příliš 日本 wörld 👋".encode()
    rig.engine.script = speak(*(bytes([byte]) for byte in data), outcome=outcome)
    events = await stream(rig, chat_body(stop=stop))
    whole = json.loads(await (await rig.post(chat_body(stop=stop))).get_data())["choices"][0]
    assert text_of(events) == whole["message"]["content"]
    assert reasons_of(events) == [whole["finish_reason"]]
    assert "\ufffd" not in text_of(events)


@pytest.mark.parametrize("stop", [None, ["rld"], ["never"]])
async def test_logprobs_come_with_the_pieces_that_their_tokens_are_in(
    rig: Any, chat_body: Any, speak: Any, stop: Any
) -> None:
    data = "Příliš 日本 wörld 👋".encode()
    rig.engine.script = speak(*(bytes([byte]) for byte in data))
    body = chat_body(stop=stop, logprobs=True, top_logprobs=2)
    events = await stream(rig, body)
    choices = [event["choices"][0] for event in events[:-1]]
    for choice in choices:
        content = choice["delta"].get("content")
        if content:
            spelled = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"])
            assert spelled.decode() == content
        else:
            assert choice["logprobs"] is None
    whole = json.loads(await (await rig.post(body)).get_data())["choices"][0]["logprobs"]
    streamed = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert streamed == whole["content"]
    assert len(streamed) > 10


async def test_a_stop_string_over_several_tokens_never_leaks(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak(*(f"{letter}" for letter in "alpha beta gamma delta"))
    events = await stream(rig, chat_body(stop=["beta gamma"]))
    assert text_of(events) == "alpha "
    assert reasons_of(events) == ["stop"]
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("script", "code", "outcome"),
    [
        (lambda engine, request: (engine.say(request.id, "ab"), engine.die("Gone.")), "engine_dead", "failed"),
        (
            lambda engine, request: (engine.say(request.id, "ab"), engine.end(request.id, "failed", "Broke.")),
            "sequence_failed",
            "failed",
        ),
        (
            lambda engine, request: (engine.say(request.id, "ab"), engine.end(request.id, "cancelled")),
            "stream_stopped",
            "cancelled",
        ),
    ],
)
async def test_a_failure_midway_is_an_error_event_and_then_nothing(
    rig: Any, chat_body: Any, script: Any, code: str, outcome: str
) -> None:
    rig.engine.script = script
    events = await stream(rig, chat_body())
    assert text_of(events) == "ab"
    assert events[-1]["error"]["code"] == code
    assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert "[DONE]" not in events
    assert reasons_of(events) == []
    assert rig.admission.in_flight == 0
    assert [end.outcome for end in rig.ends()] == [outcome]


async def test_an_unforeseen_fault_midway_is_an_error_event_too(
    rig: Any, chat_body: Any, speak: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.engine.script = speak("x")
    monkeypatch.setattr("server.api.generation.reply.Reply.fold", lambda *_: 1 / 0)
    events = await stream(rig, chat_body())
    await rig.settle()
    assert events[-1]["error"]["code"] == "internal_error"
    assert rig.admission.in_flight == 0
    assert [end.outcome for end in rig.ends()] == ["failed"]


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_a_client_that_goes_around_the_first_byte_leaves_nothing(rig: Any, chat_body: Any, turns: int) -> None:
    async with rig.client.request("/v1/chat/completions", method="POST") as connection:
        await connection.send(json.dumps(chat_body(stream=turns % 2 == 0)).encode())
        await connection.send_complete()
        await rig.settle(turns)
        await connection.disconnect()
    await rig.until(lambda: rig.admission.in_flight == 0 and not rig.engine.open)
    assert [end.outcome for end in rig.ends()] == ["cancelled"] * rig.admission.admitted_total


async def test_cached_tokens_are_part_of_the_prompt(rig: Any, chat_body: Any) -> None:
    def run(engine: Any, request: Any) -> None:
        engine.prefill(request.id, 8, 2)
        engine.prefill(request.id, 10, 2)
        engine.end(request.id, "stop")

    rig.engine.script = run
    events = await stream(rig, chat_body("0123456789", stream_options={"include_usage": True}))
    assert events[-2]["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 0,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 6},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
