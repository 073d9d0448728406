"""Every wrong body gets a sentence that names the field; every harmless one is accepted."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.api.generation.thinking import Thinking
from server.api.messages.unbuilt import HARMLESS, UNBUILT
from server.api.messages.wire import EXPECTED, MessagesBody, decode_messages
from server.errors import InvalidRequest, RequestError, UnsupportedParameter

USER = {"role": "user", "content": "hi"}


def decode(**fields: Any) -> MessagesBody:
    return decode_messages(json.dumps({"max_tokens": 9, "messages": [USER], **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": None}, "messages", "null was given"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "user, assistant, system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "list of content blocks"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type", "missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
            "a string",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"text": "x"}]}]}]},
            "messages[0].content[0].content[0].type",
            "missing",
        ),
        ({"system": 5}, "system", "list of content blocks"),
        ({"system": [{"type": "text", "text": 5}]}, "system[0].text", "a string"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": "9"}, "max_tokens", "whole number"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"temperature": 2.1}, "temperature", "from 0 to 2"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_k": -2}, "top_k", "keep all"),
        ({"stop_sequences": "x"}, "stop_sequences", "must be a list of at most 16"),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "1 to 512"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "at most 16"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type", "adaptive"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens", "at least 0"),
        ({"tools": [5]}, "tools[0]", "input_schema"),
        ({"tools": [{"name": 5}]}, "tools[0].name", "a string"),
        ({"tool_choice": "auto"}, "tool_choice", '{"type": "auto"}'),
        ({"tool_choice": {}}, "tool_choice.type", "missing"),
        ({"output_config": {"effort": 5}}, "output_config.effort", "a string"),
        ({"output_config": {"format": {}}}, "output_config.format.type", "missing"),
        ({"output_format": "json"}, "output_format", "json_schema"),
        ({"seed": -1}, "seed", "from 0"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_may_be(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(**fields)
    assert caught.value.param == param
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mcp_servers", [{"type": "url", "url": "https://a", "name": "a"}]),
        ("container", "container_1"),
        ("container", {"skills": []}),
        ("thread", {"type": "create"}),
        ("compaction", {"type": "summarize"}),
    ],
)
def test_what_only_anthropics_servers_have_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedParameter, match=name) as caught:
        decode(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("value", [None, [], {}])
def test_what_asks_for_nothing_is_accepted(value: Any) -> None:
    assert decode(**dict.fromkeys(UNBUILT, value))


def test_harmless_and_unknown_fields_are_accepted_and_the_unknown_ones_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert decode(**dict.fromkeys(HARMLESS, "anything"), next_years_field=1)
    assert "next_years_field" in caplog.text
    assert not [name for name in HARMLESS if name in caplog.text]


def test_what_claude_code_sends_is_accepted() -> None:
    given = decode(
        model="nano",
        stream=True,
        max_tokens=32000,
        system=[{"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
        ],
        tools=[{"name": "Bash", "description": "Runs.", "input_schema": {"$schema": "x", "type": "object"}}],
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "high", "task_budget": {"type": "tokens", "total": 5}},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": '{"device_id": "x", "session_id": "y"}'},
        temperature=1,
    )
    assert given.is_streaming
    assert given.hides_thoughts
    assert given.wanted_thinking == Thinking(None, "high", None)


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"thinking": {"type": "adaptive"}}, Thinking()),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, Thinking(False)),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, Thinking(True, None, 2048)),
        ({"output_config": {"effort": "low"}}, Thinking(None, "low")),
        ({"output_config": {"effort": "max"}}, Thinking(None, "max")),
        ({"output_config": {}}, Thinking()),
    ],
)
def test_what_is_said_of_thinking(fields: dict[str, Any], thinking: Thinking) -> None:
    assert decode(**fields).wanted_thinking == thinking


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        _ = decode(output_config={"effort": "boundless"}).wanted_thinking
    assert caught.value.param == "output_config.effort"


def test_thoughts_are_hidden_only_when_that_is_asked_for() -> None:
    shown: list[Any] = [None, {"type": "enabled"}, {"type": "adaptive", "display": None}]
    shown.append({"type": "adaptive", "display": "summarized"})
    assert not any(decode(thinking=thinking).hides_thoughts for thinking in shown)


def test_every_field_has_words_for_what_it_may_be() -> None:
    assert set(MessagesBody.__struct_fields__) <= set(EXPECTED)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(MessagesBody.__struct_fields__),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["type", "text", "role", "content", "name"]), inner, max_size=3)
            ),
            max_leaves=8,
        ),
    )
)
def test_any_value_of_any_field_is_taken_or_refused_in_words(fields: dict[str, Any]) -> None:
    told = ""
    try:
        decode_messages(msgspec.json.encode({"messages": [USER], **fields}))
    except RequestError as error:
        told = error.message
    assert "of another type" not in told
