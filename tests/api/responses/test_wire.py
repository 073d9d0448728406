"""Every wrong body gets a sentence that names the field; every harmless one is accepted."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import msgspec
import pytest

from server.api.responses.unbuilt import MOVED, UNBUILT
from server.api.responses.wire import EXPECTED, ResponsesBody, decode_responses
from server.errors import InvalidRequest, RequestError, UnsupportedParameter


def decode(**fields: Any) -> ResponsesBody:
    return decode_responses(json.dumps({"input": "hi", **fields}).encode())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"model": 1}, "model"),
        ({"instructions": []}, "instructions"),
        ({"previous_response_id": 1}, "previous_response_id"),
        ({"store": "no"}, "store"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": "all"}, "include"),
        ({"include": [1]}, "include[0]"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"seed": -1}, "seed"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"tools": {}}, "tools"),
        ({"tools": ["web_search"]}, "tools[0]"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"text": "json"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": []}}}, "text.format.schema"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"reasoning": "low"}, "reasoning"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"context": "none"}}, "reasoning.context"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"user": 1}, "user"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_may_be(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(**fields)
    assert caught.value.param == param
    assert EXPECTED[re.sub(r"\[\d+\]", "[]", param)] in caught.value.message


def test_a_body_without_input_is_told_what_to_send() -> None:
    with pytest.raises(InvalidRequest, match=r"`input` is missing; it must be a string or a list of items"):
        decode_responses(b'{"model": "nano"}')


def test_every_field_says_in_words_what_it_may_be() -> None:
    def walk(kind: Any, path: str) -> list[str]:
        names: list[str] = []
        for field in msgspec.structs.fields(kind):
            inner = next(
                (each for each in getattr(field.type, "__args__", ()) if hasattr(each, "__struct_fields__")), None
            )
            names += [f"{path}{field.name}", *(walk(inner, f"{path}{field.name}.") if inner else [])]
        return names

    assert [name for name in walk(ResponsesBody, "") if name not in EXPECTED] == []


@pytest.mark.parametrize(
    ("name", "asking"),
    [
        ("background", True),
        ("conversation", "conv_1"),
        ("prompt", {"id": "pmpt_1"}),
        ("moderation", {"model": "m"}),
        ("context_management", [{"type": "compaction"}]),
    ],
)
def test_what_is_not_built_is_refused_by_name_unless_it_asks_nothing(name: str, asking: Any) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        decode(**{name: asking})
    assert caught.value.param == name
    assert name in caught.value.message
    for nothing in (None, *UNBUILT[name]):
        decode(**{name: nothing})


def test_false_and_0_are_not_the_same() -> None:
    with pytest.raises(UnsupportedParameter):
        decode(background=0)


@pytest.mark.parametrize(("name", "moved"), MOVED.items())
def test_a_name_of_the_chat_dialect_is_told_the_right_one(name: str, moved: str) -> None:
    with pytest.raises(RequestError, match=re.escape(f"use `{moved}`")) as caught:
        decode(**{name: "x"})
    assert caught.value.param == name
    decode(**{name: None})


def test_what_codex_sends_is_accepted_and_unknown_fields_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        asked = decode(
            instructions="You are a coding agent.",
            store=False,
            stream=True,
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "medium", "summary": "auto"},
            text={"verbosity": "low"},
            prompt_cache_key="thread",
            service_tier="priority",
            client_metadata={"a": "b"},
            stream_options={"include_obfuscation": False},
            max_tool_calls=3,
            truncation="auto",
            metadata={"a": "b"},
            never_heard_of=1,
        )
    assert "'never_heard_of'" in caplog.text
    assert "client_metadata" not in caplog.text
    assert not asked.is_kept
    assert asked.is_streaming
    assert asked.wanted_logprobs is None
    assert asked.wanted_thinking.effort == "medium"


def test_it_is_kept_unless_the_client_says_no() -> None:
    assert [decode(store=store).is_kept for store in (None, True, False)] == [True, True, False]


def test_logprobs_are_asked_for_by_include_or_by_a_number() -> None:
    include = ["message.output_text.logprobs"]
    asked = [decode(), decode(include=include), decode(include=include, top_logprobs=3), decode(top_logprobs=2)]
    assert [each.wanted_logprobs for each in asked] == [None, 0, 3, 2]
    assert decode(top_logprobs=0).wanted_logprobs is None


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        _ = decode(reasoning={"effort": "heroic"}).wanted_thinking
    assert caught.value.param == "reasoning.effort"


def test_which_thoughts_stay_in_the_prompt_is_a_switch_of_the_template() -> None:
    def switches(context: str | None, **given: Any) -> dict[str, Any]:
        return decode(reasoning={"context": context}, chat_template_kwargs=given).template_switches

    assert switches(None) == switches("auto") == {}
    assert switches("current_turn") == {"preserve_thinking": False}
    assert switches("all_turns", x=1) == {"preserve_thinking": True, "x": 1}
    assert switches("all_turns", preserve_thinking=False) == {"preserve_thinking": False}
