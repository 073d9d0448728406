"""Thoughts: never in the content, whole and streamed alike, as long as they were asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

ON = {"enable_thinking": True}


@pytest.mark.parametrize(
    ("written", "fields", "outcome", "thought", "content"),
    [
        ("Let me see.\n</think>\n\nIt is 4.", ON, "stop", "Let me see.", "It is 4."),
        ("It is 4.", {"enable_thinking": False}, "stop", "", "It is 4."),
        ("</think>\n\nIt is 4.", {"enable_thinking": False}, "stop", "", "It is 4."),
        ("Let me", ON, "length", "Let me", ""),
        ("Let me</thi", ON, "length", "Let me</thi", ""),
        ("<think>\nLet me see.\n</think>\nIt is 4.", {}, "stop", "Let me see.", "It is 4."),
        ("Let me see.", ON, "stop", "Let me see.", ""),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_thoughts_and_their_markers_are_never_content(
    ask_both: Any, speak: Any, written: str, fields: Any, outcome: Any, thought: str, content: str, size: int
) -> None:
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    answered = await ask_both(speak(*pieces, outcome=outcome), fields)
    assert (answered.thought, answered.content) == (thought, content)
    assert answered.reasons == [outcome]


async def test_tokens_of_thoughts_are_counted_apart_and_among_all(
    rig: Any, markup: None, chat_body: Any, speak: Any
) -> None:
    rig.engine.script = speak(*"four</think>It")
    usage = json.loads(await (await rig.post(chat_body(**ON))).get_data())["usage"]
    assert usage["completion_tokens"] == len("four</think>It") + 1
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("four</think>")


async def test_thoughts_flow_with_tools_offered(rig: Any, markup: None, chat_body: Any, tools: Any) -> None:
    connection = rig.client.request("/v1/chat/completions", method="POST")
    async with connection:
        await connection.send(json.dumps(chat_body(tools=tools, stream=True, **ON)).encode())
        await connection.send_complete()
        await rig.until(lambda: rig.engine.open)
        for word in ("First", "Then"):
            rig.engine.say(rig.engine.only, word)
            seen = b""
            while word.encode() not in seen:
                seen += await connection.receive()
            assert f'"reasoning_content":"{word}"'.encode() in seen
        rig.engine.end(rig.engine.only, "length")


@pytest.mark.parametrize(
    ("fields", "switches"),
    [
        ({}, {}),
        ({"enable_thinking": True}, {"enable_thinking": True}),
        ({"thinking": {"type": "enabled"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"reasoning_effort": "max"}, {"enable_thinking": True, "reasoning_effort": "max"}),
        ({"reasoning": {"effort": "high"}}, {"enable_thinking": True, "reasoning_effort": "high"}),
        (
            {"reasoning_effort": "low", "reasoning": {"effort": "high"}},
            {"enable_thinking": True, "reasoning_effort": "low"},
        ),
        ({"reasoning_effort": "low", "enable_thinking": False}, {"enable_thinking": False, "reasoning_effort": "low"}),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False, "x": 1}},
            {"enable_thinking": False, "x": 1},
        ),
    ],
)
async def test_each_way_of_asking_for_thoughts_reaches_the_template(
    rig: Any, ask_both: Any, speak: Any, fields: Any, switches: Any
) -> None:
    await ask_both(speak("x"), fields)
    assert rig.codec.switches == [switches] * 2


@pytest.mark.parametrize("effort", ["", "LOW", "maximal", "a lot"])
async def test_an_effort_that_is_unknown_is_refused(rig: Any, chat_body: Any, effort: str) -> None:
    answer = await rig.post(chat_body(reasoning_effort=effort))
    error = json.loads(await answer.get_data())["error"]
    assert (answer.status_code, error["param"]) == (400, "reasoning_effort")
    assert "xhigh" in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking_budget": 3},
        {"thinking": {"type": "enabled", "budget_tokens": 3}},
        {"reasoning": {"max_tokens": 3}},
        {"thinking_budget": 3, "reasoning": {"max_tokens": 30}},
    ],
)
async def test_a_budget_ends_the_thought(rig: Any, ask_both: Any, speak: Any, fields: Any) -> None:
    await ask_both(speak(*"abc</think>It"), {**ON, **fields})
    for request in rig.engine.requests.values():
        guide = request.guide
        for byte in b"abc":
            assert guide.look([]) == [None]
            guide.take(byte)
        for byte in b"</think>":
            (row,) = guide.look([])
            assert [token for token in range(257) if row[token >> 5] >> (token & 31) & 1] == [byte]
            guide.take(byte)
        assert guide.look([]) == [None]


async def test_a_form_holds_for_the_text_and_not_for_the_thought(rig: Any, ask_both: Any, speak: Any) -> None:
    answered = await ask_both(speak(*'hm</think>{"a": 1}'), {**ON, "response_format": {"type": "json_object"}})
    assert (answered.thought, answered.content) == ("hm", '{"a": 1}')
    guide = rig.engine.requests.popitem()[1].guide
    for byte in b"hm</think>":
        (row,) = guide.look([])
        assert row[byte >> 5] >> (byte & 31) & 1
        guide.take(byte)
    (row,) = guide.look([])
    assert row[ord("{") >> 5] >> (ord("{") & 31) & 1
    assert not row[ord("h") >> 5] >> (ord("h") & 31) & 1


async def test_two_at_once_keep_their_own_thoughts_and_tools(
    rig: Any, markup: None, chat_body: Any, speak: Any, tools: Any, write_call: Any
) -> None:
    """The same text of the model is another answer to each, and each draws as it asked."""
    rig.engine.script = speak(f"hm</think>I call {write_call('count', number='1')}")
    thinking = rig.post(chat_body("A", temperature=0, enable_thinking=True))
    calling = rig.post(chat_body("B", temperature=0.7, enable_thinking=False, max_tokens=50, tools=tools))
    answers = await asyncio.gather(thinking, calling)
    first, second = [json.loads(await answer.get_data())["choices"][0] for answer in answers]
    assert first["message"]["reasoning_content"] == "hm"
    assert "<tool_call>" in first["message"]["content"]
    assert "tool_calls" not in first["message"]
    assert "reasoning_content" not in second["message"]
    assert [call["function"]["name"] for call in second["message"]["tool_calls"]] == ["count"]
    assert (first["finish_reason"], second["finish_reason"]) == ("stop", "tool_calls")
    asked = {bytes(request.prompt_ids): request for request in rig.engine.requests.values()}
    assert asked[b"A"].sampling.temperature == 0
    assert (asked[b"B"].sampling.temperature, asked[b"B"].max_tokens) == (0.7, 50)
