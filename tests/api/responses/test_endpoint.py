"""Responses through the whole application, with a scripted engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from server.admission.wording import build_loading_refusal
from server.api.generation.door import Door
from server.engine.request import Sampling


async def read_error(answer: Any) -> dict[str, Any]:
    return json.loads(await answer.get_data())["error"]


async def test_a_response_is_whole_and_in_the_dialect(rig: Any, ask: Any, speak: Any, read_response: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    answer = await ask({"input": "hi", "instructions": "Be brief."})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    response = read_response(await answer.get_data())
    key = answer.headers["x-request-id"].removeprefix("req-")
    assert response["id"] == f"resp_{key}"
    assert response["created_at"] > 1_700_000_000
    assert response["completed_at"] >= response["created_at"]
    assert response["model"] == "org/nano"
    assert response["instructions"] == "Be brief."
    assert response["output"] == [
        {
            "id": f"msg_{key}_0",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello wörld", "annotations": [], "logprobs": []}],
        }
    ]
    assert response["usage"]["input_tokens"] == len("Be brief.hi")
    assert response["usage"]["output_tokens"] == 13
    assert rig.admission.in_flight == 0
    assert [end.outcome for end in rig.ends()] == ["stop"]


async def test_what_was_asked_reaches_the_engine(rig: Any, ask: Any, speak: Any, read_response: Any) -> None:
    rig.engine.script = speak("x", outcome="length")
    answer = await ask(
        {"input": "abc", "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "max_output_tokens": 1}
    )
    (request,) = rig.engine.requests.values()
    assert request.prompt_ids == tuple(b"abc")
    assert request.sampling == Sampling(0.5, 0.9, 7, 0.0, 3)
    assert (request.max_tokens, request.top_logprobs) == (1, None)
    response = read_response(await answer.get_data())
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [end.outcome for end in rig.ends()] == ["length"]


async def test_logprobs_are_told_when_they_are_asked_for(
    rig: Any, ask: Any, speak: Any, read_response: Any, read_events: Any
) -> None:
    rig.engine.script = speak("Hě", "y")
    asked = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = read_response(await (await ask(asked)).get_data())["output"][0]["content"][0]["logprobs"]
    assert bytes(byte for entry in whole for byte in entry["bytes"]).decode() == "Hěy"
    assert [len(entry["top_logprobs"]) for entry in whole] == [2] * 4
    events = read_events(await (await ask({**asked, "stream": True})).get_data())
    streamed = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert streamed == whole
    assert [request.top_logprobs for request in rig.engine.requests.values()] == [2, 2]


async def test_a_stop_string_ends_the_answer_and_the_work(rig: Any, ask: Any, read_events: Any) -> None:
    def talk_on(engine: Any, request: Any) -> None:
        for piece in ("alpha be", "ta gam", "ma delta", " more"):
            engine.say(request.id, piece)

    rig.engine.script = talk_on
    events = read_events(await (await ask({"input": "hi", "stop": "beta gamma", "stream": True})).get_data())
    await rig.settle()
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "alpha "
    assert rig.engine.cancelled == list(rig.engine.requests)
    assert rig.admission.in_flight == 0


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "no-such-model-xyz"}, 404, "model_not_found", "model"),
        ({"input": []}, 400, "invalid_request", "input"),
        ({"input": [{"type": "web_search_call"}]}, 400, "invalid_request", "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "invalid_request", None),
        ({"background": True}, 400, "unsupported_parameter", "background"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, 400, "unsupported_parameter", "tools[0].type"),
        ({"tool_choice": "required"}, 400, "invalid_request", "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, 400, "invalid_request", "text.format.schema"),
        ({"top_k": 258}, 400, "invalid_request", "top_k"),
        ({"max_output_tokens": 10**9}, 400, "invalid_request", "max_output_tokens"),
        ({"reasoning": {"effort": "heroic"}}, 400, "invalid_request", "reasoning.effort"),
        ({"input": "x" * 4096}, 400, "context_length_exceeded", "input"),
        ({"input": "template, refuse"}, 400, "invalid_request", "input"),
        ({"previous_response_id": "resp_x"}, 400, "previous_response_not_found", "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_x_0"}]}, 400, "invalid_request", "input[0].id"),
        ({"input": [{"id": 5}]}, 400, "invalid_request", "input[0].id"),
    ],
)
async def test_a_request_that_can_never_succeed_takes_no_slot_and_no_prefill(
    rig: Any, ask: Any, fields: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    for streaming in (False, True):
        answer = await ask({"input": "hi", "stream": streaming, **fields})
        error = await read_error(answer)
        assert (answer.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
        assert error["param"] == (param or "input[0].content[0].type")
    assert rig.admission.admitted_total == 0
    assert not rig.engine.requests
    assert not rig.refusals()


async def test_the_third_is_refused_before_any_byte_and_counted(rig: Any, ask: Any) -> None:
    held = [asyncio.create_task(ask({"input": "hi"})) for _ in range(2)]
    await rig.until(lambda: rig.admission.in_flight == 2)
    answer = await ask({"input": "hello", "stream": True, "max_output_tokens": 9}, session_id="s", thread_id="t1")
    error = await read_error(answer)
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
    assert (error["type"], error["code"]) == ("admission_refused", "in_flight_full")
    (refused,) = rig.refusals()
    assert (refused.session, refused.prompt_tokens, refused.max_tokens) == ("t1", 5, 9)
    for request_id in list(rig.engine.open):
        rig.engine.end(request_id, "stop")
    assert [(await done).status_code for done in held] == [200, 200]


async def test_while_the_model_loads_it_is_refused(rig: Any, ask: Any) -> None:
    class Loading:
        @property
        def vocab_size(self) -> int:
            raise build_loading_refusal()

    rig.codec = Loading()
    answer = await ask({"input": "hi"})
    assert (answer.status_code, (await read_error(answer))["code"]) == (503, "model_loading")


async def test_a_failure_of_what_is_not_streamed_is_an_error(rig: Any, ask: Any) -> None:
    rig.engine.script = lambda engine, request: engine.end(request.id, "failed", "Broke.")
    answer = await ask({"input": "hi"})
    assert (answer.status_code, (await read_error(answer))["code"]) == (500, "sequence_failed")


@pytest.mark.usefixtures("markup")
async def test_tools_are_told_to_the_model_and_the_choice_is_the_engines_rule(
    rig: Any, ask: Any, speak: Any, read_response: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    opened = Door.open
    monkeypatch.setattr(Door, "open", lambda door, request: (asked.append(request), opened(door, request))[1])
    rig.engine.script = speak("x")
    look = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    answer = await ask(
        {
            "input": "hi",
            "tools": [look, {"type": "web_search"}],
            "tool_choice": {"type": "function", "name": "look"},
            "reasoning": {"effort": "low", "context": "current_turn"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
            "stop": ["."],
        }
    )
    response = read_response(await answer.get_data())
    (request,) = asked
    assert [tool.name for tool in request.prompt.tools] == ["look"]
    assert (request.tool_rule.choice, request.tool_rule.name) == ("required", "look")
    assert request.prompt.template_kwargs == {"preserve_thinking": False}
    assert request.prompt.thinking.effort == "low"
    assert (request.format.kind, request.format.schema, request.format.param) == (
        "json_schema",
        {"type": "object"},
        "text.format.schema",
    )
    assert request.stops == (".",)
    assert response["tools"] == [{**look, "description": None, "strict": None}]


async def test_tokens_are_counted_without_a_slot(rig: Any, ask: Any, speak: Any, read_response: Any) -> None:
    async def count(body: dict[str, Any]) -> Any:
        return await rig.client.post("/v1/responses/input_tokens", data=json.dumps(body).encode())

    rig.engine.script = speak("one")
    first = read_response(await (await ask({"input": "hi"})).get_data())
    rig.admission.drain()
    answer = await count({"input": "b", "instructions": "Be brief.", "previous_response_id": first["id"]})
    assert answer.status_code == 200
    assert json.loads(await answer.get_data()) == {
        "object": "response.input_tokens",
        "input_tokens": len("Be brief.hioneb"),
    }
    answer = await count({"input": "template, refuse"})
    assert (answer.status_code, (await read_error(answer))["param"]) == (400, "input")
    assert rig.admission.admitted_total == 1


@pytest.mark.parametrize("where", ["tools", "input"])
@pytest.mark.parametrize("padding", [0, 100_000])
async def test_what_is_nested_too_deeply_is_refused_and_leaves_nothing(
    rig: Any, speak: Any, where: str, padding: int
) -> None:
    rig.model = msgspec.structs.replace(rig.model, context_limit_tokens=200_000)
    rig.engine.script = speak("x")
    statuses: set[int] = set()
    for depth in (80, 935, 938, 941, 944, 950, 970, 980):
        nested = "[" * depth + "]" * depth
        tool = f'{{"type": "function", "name": "a", "parameters": {{"x": {nested if where == "tools" else 1}}}}}'
        item = f'{{"type": "function_call", "name": "a", "x": {nested if where == "input" else 1}}}'
        body = f'{{"input": [{{"role": "user", "content": "{"h" * padding}"}}, {item}], "tools": [{tool}]}}'
        answer = await rig.client.post("/v1/responses", data=body.encode())
        statuses.add(answer.status_code)
        await rig.until(lambda: rig.admission.in_flight == 0)
    assert statuses == {200, 400}


async def test_the_store_is_bounded_for_the_whole_server(
    rig: Any, ask: Any, speak: Any, monkeypatch: pytest.MonkeyPatch, read_response: Any
) -> None:
    monkeypatch.setattr("server.api.responses.store.KEPT_MOST", 2)
    rig.engine.script = speak("x")
    ids = [read_response(await (await ask({"input": "a"})).get_data())["id"] for _ in range(3)]
    statuses = [(await rig.client.get(f"/v1/responses/{response_id}")).status_code for response_id in ids]
    assert statuses == [404, 200, 200]
