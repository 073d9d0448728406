"""The official Python client against the application behind the real server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

HI: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


def ask(**fields: Any) -> Any:
    return {"model": "nano", "max_tokens": 64, "messages": HI, **fields}


CALL = "<tool_call>\n<function=read>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture
async def client(port: int) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="none") as client:
        yield client


async def test_it_creates_a_message(rig: Any, client: anthropic.AsyncAnthropic, speak: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    message = await client.messages.create(**ask())
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello wörld"}]
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens == 2
    assert message._request_id is not None
    assert message._request_id.startswith("req-")
    assert rig.ends()[0].client.startswith("AsyncAnthropic/Python")


async def test_it_streams_text_with_pings_in_between(rig: Any, client: anthropic.AsyncAnthropic) -> None:
    rig.set_policy(server__keep_alive_s=0.5)
    async with client.messages.stream(**ask()) as stream:
        request_id = rig.engine.only
        start_s = time.monotonic()
        while time.monotonic() - start_s < 0.7:
            await rig.settle()
        rig.engine.prefill(request_id, 2, 2)
        rig.engine.say(request_id, "Hel")
        rig.engine.say(request_id, "lo")
        rig.engine.end(request_id, "stop")
        assert "".join([text async for text in stream.text_stream]) == "Hello"
        message = await stream.get_final_message()
    assert message.usage.output_tokens == 5
    assert message.stop_reason == "end_turn"


@pytest.mark.usefixtures("markup")
async def test_pings_go_on_while_hidden_thoughts_are_thought(rig: Any, client: anthropic.AsyncAnthropic) -> None:
    rig.set_policy(server__keep_alive_s=0.5)
    asked: Any = {**ask(), "thinking": {"type": "enabled", "display": "omitted"}, "stream": True}
    data = b""
    async with await client.messages.create(**asked) as stream:
        request_id = rig.engine.only
        async for piece in stream.response.aiter_bytes():
            data += piece
            if rig.engine.open:
                rig.engine.say(request_id, "hm ")
                if data.count(b"event: ping") >= 4:
                    rig.engine.say(request_id, "</think>Hello")
                    rig.engine.end(request_id, "stop")
    assert b'"thinking":"hm' not in data
    assert b"Hello" in data
    assert data.rstrip().endswith(b'{"type":"message_stop"}')


@pytest.mark.usefixtures("markup")
@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_a_tool_is_called_and_its_result_and_all_else_go_back(
    rig: Any, client: anthropic.AsyncAnthropic, speak: Any, display: Any
) -> None:
    rig.engine.script = speak("<think>hm</think>Let me look.\n", CALL)
    asked: Any = {
        "model": "nano",
        "max_tokens": 999,
        "tools": [TOOL],
        "thinking": {"type": "adaptive", "display": display},
    }
    whole = await client.messages.create(**asked, messages=HI)
    async with client.messages.stream(**asked, messages=HI) as stream:
        streamed = await stream.get_final_message()
    for block, same in zip(streamed.content, whole.content, strict=True):
        assert {**block.to_dict(), "id": ""} == {**same.to_dict(), "id": ""}
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    call = whole.content[2]
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert call.input == {"path": "a.py"}
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "x = 1"}
    await client.messages.create(
        **asked, messages=[*HI, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    )
    assert rig.codec.seen[-1] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": call.id, "type": "function", "function": {"name": "read", "arguments": {"path": "a.py"}}}
            ],
        },
        {"role": "tool", "content": "x = 1", "tool_call_id": call.id},
    ]


@pytest.mark.usefixtures("markup")
async def test_a_call_that_is_cut_breaks_no_stream(rig: Any, client: anthropic.AsyncAnthropic, speak: Any) -> None:
    rig.engine.script = speak(CALL[:60], outcome="length")
    async with client.messages.stream(**ask(tools=[TOOL])) as stream:
        message = await stream.get_final_message()
    assert message.stop_reason == "max_tokens"
    assert message.content[0].type == "tool_use"


async def test_it_counts_tokens(rig: Any, client: anthropic.AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model="nano", messages=HI, system="four", tools=[TOOL])
    assert counted.input_tokens == 6
    assert not rig.engine.requests


async def test_a_refusal_is_raised_at_once_and_never_sent_again(rig: Any, client: anthropic.AsyncAnthropic) -> None:
    rig.set_policy(policy__max_in_flight=1)
    async with client.messages.stream(**ask()):
        for status, kind in ((429, anthropic.RateLimitError), (503, anthropic.InternalServerError)):
            rig.set_policy(policy__refusal_status=status)
            start_s, before = time.monotonic(), len(rig.refusals())
            with pytest.raises(kind, match="1 of 1 in flight") as caught:
                await client.messages.create(**ask())
            assert time.monotonic() - start_s < 0.5
            assert caught.value.error_code == "in_flight_full"
            assert len(rig.refusals()) == before + 1, "the client came back by itself"
    await rig.until(lambda: rig.admission.in_flight == 0)


async def test_faults_have_the_clients_own_classes(rig: Any, client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="available: 'org/nano'") as unknown:
        await client.messages.create(**ask(model="claude-sonnet-4-6"))
    assert (unknown.value.type, unknown.value.error_code) == ("not_found_error", "model_not_found")
    assert unknown.value.request_id is not None
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 5000 tokens > 4095 maximum"):
        await client.messages.create(**ask(messages=[{"role": "user", "content": "x" * 5000}]))
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.batches.retrieve("nothing")
    rig.set_policy(server__allowed_origins=(), server__api_key="k")
    with pytest.raises(anthropic.AuthenticationError) as rejected:
        await client.messages.count_tokens(model="nano", messages=HI)
    assert (rejected.value.type, rejected.value.error_code) == ("authentication_error", "invalid_api_key")
    rig.set_policy(server__api_key="")
    with pytest.raises(anthropic.PermissionDeniedError) as forbidden:
        await client.messages.create(**ask(), extra_headers={"origin": "https://evil.example"})
    assert forbidden.value.type == "permission_error"
    with pytest.raises(anthropic.APIStatusError) as large:
        await client.messages.create(**ask(messages=[{"role": "user", "content": "x" * 33_600_000}]))
    assert (large.value.status_code, large.value.error_code) == (413, "body_too_large")


async def test_a_failure_midway_is_raised_once(rig: Any, client: anthropic.AsyncAnthropic) -> None:
    def break_down(engine: Any, request: Any) -> None:
        engine.say(request.id, "ab")
        engine.end(request.id, "failed", "Its scores are not numbers.")

    rig.engine.script = break_down
    stream = await client.messages.create(**ask(stream=True))
    with pytest.raises(anthropic.APIStatusError, match="not numbers") as caught:
        async for _ in stream:
            pass
    assert (caught.value.type, caught.value.error_code) == ("api_error", "sequence_failed")
    assert len(rig.engine.requests) == 1


async def test_a_client_that_leaves_frees_its_slot(rig: Any, client: anthropic.AsyncAnthropic) -> None:
    stream = await client.messages.create(**ask(stream=True))
    request_id = rig.engine.only
    rig.engine.say(request_id, "four")
    await rig.settle()
    await stream.close()
    await rig.until(lambda: rig.admission.in_flight == 0, 2.0)
    assert rig.engine.cancelled == [request_id]
    assert rig.ends()[0].detail == "client closed the connection in decode after 4 tokens"
