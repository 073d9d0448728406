"""Messages requests through the whole application, with a scripted engine."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest

from server.admission.wording import build_loading_refusal
from server.api.generation.asked import ChatPrompt, Format, ToolRule
from server.api.generation.thinking import Thinking
from server.api.messages.endpoint import build_asked
from server.api.messages.wire import decode_messages
from server.engine.request import Sampling

COUNT = "/v1/messages/count_tokens"


async def read(answer: Any) -> dict[str, Any]:
    return json.loads(await answer.get_data())


def ask(**fields: Any) -> Any:
    """What a body asks for, with a model whose context has 4,096 tokens."""
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], **fields}
    caller: Any = None
    return build_asked(caller, 1, decode_messages(json.dumps(body).encode()), 4096)


async def test_an_answer_is_whole_and_in_the_dialect(rig: Any, post: Any, speak: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    answer = await post()
    request_id = answer.headers["request-id"]
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert request_id == answer.headers["x-request-id"]
    assert await read(answer) == {
        "id": f"msg_{request_id.removeprefix('req-')}",
        "type": "message",
        "role": "assistant",
        "model": "nano",
        "content": [{"type": "text", "text": "Hello wörld"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 13,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    assert rig.admission.in_flight == 0
    assert [end.outcome for end in rig.ends()] == ["stop"]


async def test_what_was_asked_reaches_the_engine_and_the_template(rig: Any, post: Any, speak: Any) -> None:
    rig.engine.script = speak("x", outcome="length")
    result = {"type": "tool_result", "tool_use_id": "a", "content": "found"}
    answer = await post(
        system=[{"type": "text", "text": "Be brief."}],
        messages=[
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "grep", "input": {"q": 1}}]},
            {"role": "user", "content": [result]},
        ],
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        max_tokens=1,
    )
    (request,) = rig.engine.requests.values()
    assert request.sampling == Sampling(0.5, 0.9, 7)
    assert request.max_tokens == 1
    assert [turn["role"] for turn in rig.codec.seen[0]] == ["system", "user", "assistant", "tool"]
    assert (await read(answer))["stop_reason"] == "max_tokens"


def test_the_rest_of_what_was_asked_is_handed_on() -> None:
    schema = {"type": "object", "properties": {}}
    asked = ask(
        stop_sequences=["\nHuman:"],
        tools=[{"name": "grep", "input_schema": schema}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 2000},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}},
        chat_template_kwargs={"preserve_thinking": False},
    )
    assert isinstance(asked.prompt, ChatPrompt)
    assert [tool.name for tool in asked.prompt.tools] == ["grep"]
    assert asked.prompt.template_kwargs == {"preserve_thinking": False}
    assert asked.prompt.thinking == Thinking(True, "low", 2000)
    assert asked.stops == ("\nHuman:",)
    assert asked.tool_rule == ToolRule("required", parallel=False)
    assert asked.format == Format("json_schema", schema, "output_config.format.schema")


def test_nothing_said_is_nothing_asked() -> None:
    asked = ask()
    assert (asked.prompt.tools, asked.prompt.template_kwargs, asked.stops) == ((), {}, ())
    assert (asked.tool_rule, asked.format, asked.prompt.thinking) == (ToolRule(), Format(), Thinking())


def test_the_older_name_of_the_format_is_taken_too() -> None:
    format_ = {"type": "json_schema", "schema": {}}
    assert ask(output_format=format_).format == Format("json_schema", {}, "output_format.schema")


async def test_any_large_output_is_shortened_to_the_room(rig: Any, post: Any, speak: Any) -> None:
    rig.engine.script = speak("x")
    for max_tokens in (4000, 32_000, 10**9, None):
        assert (await post("/v1/messages", text="abc", max_tokens=max_tokens)).status_code == 200
    assert [request.max_tokens for request in rig.engine.requests.values()] == [4000, 4093, 4093, 4093]


async def test_a_stop_sequence_ends_the_answer_and_is_named(rig: Any, post: Any, speak: Any) -> None:
    rig.engine.script = speak("alpha be", "ta gam", "ma delta")
    body = await read(await post(stop_sequences=["beta gamma", "zeta"]))
    assert body["content"] == [{"type": "text", "text": "alpha "}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "beta gamma")
    assert rig.admission.in_flight == 0


@pytest.mark.parametrize("model", ["nano", "org/nano", "", None])
async def test_the_model_is_called_as_the_client_calls_it(rig: Any, post: Any, speak: Any, model: str | None) -> None:
    rig.engine.script = speak("x")
    assert (await read(await post(model=model)))["model"] == (model or "org/nano")


async def test_headers_of_the_dialect_are_accepted_and_none_is_wanted(rig: Any, post: Any, speak: Any) -> None:
    rig.engine.script = speak("x")
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,effort-2025-11-24"}
    assert (await post("/v1/messages?beta=true", headers)).status_code == 200
    assert (await post()).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "kind", "code", "param"),
    [
        ({"model": "claude-sonnet-4-6"}, 404, "not_found_error", "model_not_found", "model"),
        ({"messages": []}, 400, "invalid_request_error", "invalid_request", "messages"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "unsupported_parameter", "mcp_servers"),
        ({"top_k": 258}, 400, "invalid_request_error", "invalid_request", "top_k"),
        ({"text": "x" * 4096}, 400, "invalid_request_error", "context_length_exceeded", "messages"),
        ({"text": "template, refuse"}, 400, "invalid_request_error", "invalid_request", "messages"),
    ],
)
async def test_a_request_that_can_never_succeed_takes_no_slot(
    rig: Any, post: Any, fields: dict[str, Any], status: int, kind: str, code: str, param: str
) -> None:
    for streaming in (False, True):
        answer = await post(stream=streaming, **fields)
        body = await read(answer)
        assert answer.status_code == status
        assert body["error"].pop("message")
        assert body == {
            "type": "error",
            "error": {"type": kind, "details": {"error_code": code, "param": param}},
            "request_id": answer.headers["request-id"],
        }
    assert rig.admission.admitted_total == 0
    assert not rig.refusals()


async def test_a_full_house_is_told_with_the_numbers_and_counted(rig: Any, post: Any, chat_body: Any) -> None:
    held = [asyncio.create_task(rig.post(chat_body())) for _ in range(2)]
    await rig.until(lambda: rig.admission.in_flight == 2)
    headers = {"x-claude-code-session-id": "s1", "x-claude-code-agent-id": "a1"}
    answer = await post("/v1/messages", headers, stream=True)
    error = (await read(answer))["error"]
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert error["message"].startswith("Refused by homebase admission: 2 of 2 in flight")
    assert (error["type"], error["details"]) == ("rate_limit_error", {"error_code": "in_flight_full"})
    (refused,) = rig.refusals()
    assert (refused.session, refused.lane, refused.max_tokens) == ("a1", "child", 100)
    rig.set_policy(policy__refusal_status=400)
    data = (await (await post()).get_data()).decode()
    assert '"invalid_request_error"' in data
    assert "rate_limit" not in data
    for request_id in list(rig.engine.open):
        rig.engine.end(request_id, "stop")
    await asyncio.gather(*held)


async def test_while_the_model_loads_everything_is_refused_for_now(rig: Any, post: Any) -> None:
    class Loading:
        @property
        def vocab_size(self) -> int:
            raise build_loading_refusal()

        def encode_chat(self, *_: Any, **__: Any) -> list[int]:
            raise build_loading_refusal()

    rig.codec = Loading()
    rig.model = msgspec.structs.replace(rig.model, context_limit_tokens=0, effective_context_limit_tokens=0)
    for path in ("/v1/messages", COUNT):
        answer = await post(path)
        assert answer.status_code == 503
        assert (await read(answer))["error"]["details"] == {"error_code": "model_loading"}


async def test_tokens_are_counted_without_a_slot_and_whatever_is_in_flight(rig: Any, post: Any, chat_body: Any) -> None:
    held = [asyncio.create_task(rig.post(chat_body())) for _ in range(2)]
    await rig.until(lambda: rig.admission.in_flight == 2)
    answer = await post(COUNT, system="four", max_tokens=None)
    assert (answer.status_code, await read(answer)) == (200, {"input_tokens": 6})
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert await read(await post(COUNT, text="x" * 9000)) == {"input_tokens": 9000}
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}]
    assert await read(await post(COUNT, messages=begun)) == {"input_tokens": 4}
    assert not rig.refusals()
    assert rig.admission.admitted_total == 2
    for request_id in list(rig.engine.open):
        rig.engine.end(request_id, "stop")
    await asyncio.gather(*held)


async def test_a_count_is_refused_for_what_an_answer_is_refused_for(post: Any) -> None:
    assert (await post(COUNT, model="gpt-5")).status_code == 404
    answer = await post(COUNT, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    assert "text only" in (await read(answer))["error"]["message"]


async def test_a_dead_engine_is_a_fault_that_is_not_to_be_retried(rig: Any, post: Any) -> None:
    rig.engine.dead = "Out of memory."
    answer = await post()
    assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
    error = (await read(answer))["error"]
    assert error == {"type": "api_error", "message": "Out of memory.", "details": {"error_code": "engine_dead"}}
    assert rig.admission.in_flight == 0


async def test_an_unforeseen_fault_is_told_in_the_dialect(
    rig: Any, post: Any, speak: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.engine.script = speak("x")
    monkeypatch.setattr("server.api.messages.shapes.MessageAnswer.keep", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR):
        answer = await post()
    assert answer.status_code == 500
    body = await read(answer)
    assert body["error"]["details"] == {"error_code": "internal_error"}
    assert body["request_id"] in body["error"]["message"]
    await rig.settle()
    assert rig.admission.in_flight == 0
