"""Calls of tools: what models write becomes what clients read, whole and streamed alike."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TALK = "Let me look at a < b, <tool, </think and <tool_cal."
THOUGHT = "I could write <tool_call> or <b>.</think>"

Cuts = st.lists(st.integers(0, 600), max_size=40)


def cut(text: str, places: list[int]) -> list[bytes]:
    """The bytes of a text in pieces; half a character may be one."""
    data = text.encode()
    edges = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[start:end] for start, end in pairwise(edges)]


async def test_prose_then_a_call_is_text_and_a_call_and_no_markup(
    ask_both: Any, speak: Any, tools: Any, write_call: Any
) -> None:
    written = f"I will write it.\n\n{write_call('write', path='a.py', text='x = 1')}"
    answered = await ask_both(speak(*written), {"tools": tools})
    assert answered.content == "I will write it."
    assert [(name, json.loads(text)) for name, text in answered.calls] == [("write", {"path": "a.py", "text": "x = 1"})]
    assert answered.reasons == ["tool_calls"]
    assert answered.thought == ""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(Cuts, st.booleans(), st.booleans(), st.sampled_from(["stop", "length"]))
async def test_how_the_answer_is_cut_into_pieces_changes_nothing(
    ask_both: Any, speak: Any, tools: Any, write_call: Any, places: list[int], thinks: bool, talks: bool, outcome: Any
) -> None:
    calls = [write_call("write", path="ž.py", text="a = '<tool_call>'\n👋"), write_call("count", number="3")]
    written = THOUGHT * thinks + TALK * talks + "\n".join(calls)
    answered = await ask_both(
        speak(*cut(written, places), outcome=outcome), {"tools": tools, "enable_thinking": thinks}
    )
    assert answered.content == TALK * talks
    assert answered.thought == THOUGHT.removesuffix("</think>") * thinks
    assert [(name, json.loads(text)) for name, text in answered.calls] == [
        ("write", {"path": "ž.py", "text": "a = '<tool_call>'\n👋"}),
        ("count", {"number": 3}),
    ]
    assert answered.reasons == ["tool_calls" if outcome == "stop" else "length"]


@pytest.mark.parametrize("text", ["a < b", "<tool", "<tool_call", "x <tool_calls> y", "</tool_call", "<"])
async def test_text_that_only_looks_like_a_call_is_delivered_whole(
    ask_both: Any, speak: Any, tools: Any, text: str
) -> None:
    answered = await ask_both(speak(*text), {"tools": tools})
    assert (answered.content, answered.calls, answered.reasons) == (text, [], ["stop"])


@pytest.mark.parametrize(
    ("given_values", "values"),
    [
        ({"number": "2026-01-15"}, {"number": "2026-01-15"}),
        ({"number": "12", "options": "not JSON"}, {"number": 12, "options": "not JSON"}),
        ({"options": '{"deep": [1, {"a": null}]}'}, {"options": {"deep": [1, {"a": None}]}}),
        ({}, {}),
    ],
)
async def test_a_value_that_does_not_fit_its_type_does_not_cost_the_call(
    ask_both: Any, speak: Any, tools: Any, write_call: Any, given_values: Any, values: Any
) -> None:
    answered = await ask_both(speak(write_call("count", **given_values)), {"tools": tools})
    assert [(name, json.loads(text)) for name, text in answered.calls] == [("count", values)]
    assert answered.reasons == ["tool_calls"]


async def test_a_file_about_calls_is_written_to_the_letter(
    ask_both: Any, speak: Any, tools: Any, write_call: Any
) -> None:
    text = '</parameter> closes\n<think>no thought</think>\n</tool_call>\n\tžluť 👋 \\n "q"'
    answered = await ask_both(speak(*write_call("write", path="a", text=text)), {"tools": tools, "stop": ["closes"]})
    assert json.loads(answered.calls[0][1])["text"] == text
    assert answered.reasons == ["tool_calls"]


async def test_arguments_flow_while_they_are_written(
    rig: Any, markup: None, chat_body: Any, tools: Any, read_chunks: Any
) -> None:
    def write(engine: Any, request: Any) -> None:
        engine.say(request.id, "<tool_call>\n<function=write>\n<parameter=text>\n")
        engine.say(request.id, "one long file ")
        engine.say(request.id, "and its end")

    rig.engine.script = write
    connection = rig.client.request("/v1/chat/completions", method="POST")
    async with connection:
        await connection.send(json.dumps(chat_body(tools=tools, stream=True)).encode())
        await connection.send_complete()
        seen = b""
        while b"one long file" not in seen:
            seen += await connection.receive()
        assert b'"name":"write"' in seen
        assert rig.engine.open, "the call had not ended"
        rig.engine.end(rig.engine.only, "length")


async def test_one_call_is_all_when_no_more_may_come_together(
    rig: Any, ask_both: Any, tools: Any, write_call: Any
) -> None:
    def write_on(engine: Any, request: Any) -> None:
        engine.say(request.id, write_call("count", number="1"))
        engine.say(request.id, write_call("count", number="2"))
        engine.say(request.id, "and more")

    answered = await ask_both(write_on, {"tools": tools, "parallel_tool_calls": False})
    assert [json.loads(text) for _, text in answered.calls] == [{"number": 1}]
    assert (answered.content, answered.reasons) == ("", ["tool_calls"])
    assert len(rig.engine.cancelled) == 2, "the work ended with the answer"
    assert [end.outcome for end in rig.ends()] == ["stop", "stop"]


async def test_a_stop_string_inside_a_call_or_a_thought_is_none(
    ask_both: Any, speak: Any, tools: Any, write_call: Any
) -> None:
    fields: dict[str, Any] = {"tools": tools, "enable_thinking": True, "stop": ["halt"]}
    called = await ask_both(speak(*f"halt</think>{write_call('write', text='halt')}"), fields)
    assert (called.thought, called.reasons) == ("halt", ["tool_calls"])
    assert json.loads(called.calls[0][1]) == {"text": "halt"}
    said = await ask_both(speak(*"halt</think>I halt here"), fields)
    assert (said.thought, said.content, said.reasons) == ("halt", "I ", ["stop"])


async def test_a_call_that_is_cut_is_told_as_cut(ask_both: Any, speak: Any, tools: Any, write_call: Any) -> None:
    written = write_call("write", path="a", text="long").partition("long")[0] + "lo"
    answered = await ask_both(speak(*written, outcome="length"), {"tools": tools})
    ((name, arguments),) = answered.calls
    assert (name, answered.reasons) == ("write", ["length"])
    assert arguments == '{"path": "a", "text": "lo'


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tool_choice": "none"}])
async def test_markup_of_calls_is_text_where_no_tool_may_be_called(
    ask_both: Any, speak: Any, tools: Any, write_call: Any, fields: Any
) -> None:
    asked = {"tools": tools, **fields} if "tool_choice" in fields else fields
    answered = await ask_both(speak(write_call("count", number="1")), asked)
    assert answered.calls == []
    assert answered.content == write_call("count", number="1")
    assert answered.reasons == ["stop"]


async def test_the_prompt_shows_the_tools(rig: Any, ask_both: Any, speak: Any, tools: Any) -> None:
    await ask_both(speak("x"), {"tools": tools})
    assert rig.codec.offered == [["write", "count"]] * 2


@pytest.mark.parametrize(
    "choice",
    ["required", "any", {"type": "function", "function": {"name": "count"}}, {"type": "function", "name": "count"}],
)
async def test_a_call_that_is_asked_for_is_enforced(
    rig: Any, ask_both: Any, speak: Any, tools: Any, write_call: Any, choice: Any
) -> None:
    await ask_both(speak(write_call("count", number="1")), {"tools": tools, "tool_choice": choice})
    for request in rig.engine.requests.values():
        (row,) = request.guide.look([])
        allowed = [byte for byte in range(256) if row[byte >> 5] >> (byte & 31) & 1]
        assert ord("<") in allowed
        assert not set(allowed) & set(b"abc123{")


async def test_free_text_is_held_to_nothing(rig: Any, ask_both: Any, speak: Any, tools: Any) -> None:
    await ask_both(speak("x"), {"tools": tools, "tool_choice": "auto"})
    await ask_both(speak("x"), {"response_format": {"type": "text"}})
    assert {request.guide for request in rig.engine.requests.values()} == {None}


async def test_beside_tools_a_form_is_either_json_or_a_call(
    rig: Any, ask_both: Any, speak: Any, tools: Any, write_call: Any
) -> None:
    fields = {"tools": tools, "response_format": {"type": "json_object"}}
    called = await ask_both(speak(write_call("count", number="1")), fields)
    assert (called.content, called.reasons) == ("", ["tool_calls"])
    said = await ask_both(speak('{"a": 1}'), fields)
    assert (said.content, said.calls, said.reasons) == ('{"a": 1}', [], ["stop"])
    for request in rig.engine.requests.values():
        (row,) = request.guide.look([])
        allowed = [byte for byte in range(256) if row[byte >> 5] >> (byte & 31) & 1]
        assert {ord("<"), ord("{")} <= set(allowed)
        assert not set(allowed) & set(b"abc123")


async def test_logprobs_are_those_of_the_text_alone(ask_both: Any, speak: Any, tools: Any, write_call: Any) -> None:
    written = f"hm</think>Hě!{write_call('count', number='1')}"
    fields = {"tools": tools, "enable_thinking": True, "logprobs": True, "top_logprobs": 1}
    answered = await ask_both(speak(*cut(written, [3, 12])), fields)
    assert bytes(byte for entry in answered.scores for byte in entry["bytes"]).decode() == "Hě!"
    assert answered.reasons == ["tool_calls"]


async def test_the_signs_of_life_go_on_while_a_call_is_held_back(rig: Any, markup: None, chat_body: Any, tools: Any):
    """A value that is no text is sent when it is complete; a long one leaves nothing to send meanwhile."""
    rig.set_policy(server__keep_alive_s=0.5)
    connection = rig.client.request("/v1/chat/completions", method="POST")
    async with connection:
        await connection.send(json.dumps(chat_body(tools=tools, stream=True)).encode())
        await connection.send_complete()
        await rig.until(lambda: rig.engine.open)
        request_id = rig.engine.only
        rig.engine.say(request_id, "<tool_call>\n<function=count>\n<parameter=options>\n[")
        seen = b""
        while seen.count(b": keep-alive") < 3:
            rig.engine.say(request_id, "1,\n")
            seen += await connection.receive()
        assert b"1,\\n" not in seen
        rig.engine.say(request_id, "1]\n</parameter>\n</function>\n</tool_call>")
        rig.engine.end(request_id, "stop")
        while b"[DONE]" not in seen:
            seen += await connection.receive()
    assert b'"finish_reason":"tool_calls"' in seen
