from __future__ import annotations

import json
from typing import Any

import pytest
from mlx_lm.tool_parsers import glm47, mistral, pythonic

from server.text.markup import Markers, Markup

SIZES = [1, 4, None]


def build_markup(parse: Any, start: str = "<tool_call>", end: str = "</tool_call>") -> Markup:
    return Markup(Markers("<think>", "</think>"), Markers(start, end), "other", parse)


@pytest.mark.parametrize("at", SIZES)
def test_a_call_in_json_is_delivered_when_it_is_complete(read: Any, json_markup: Markup, at: int | None) -> None:
    call = '<tool_call>\n{"name": "write", "arguments": {"path": "a<b", "n": [1, null]}}\n</tool_call>'
    answer = read(f"hm</think>Now.\n{call}\n{call}", at, markup=json_markup, opens_thought=True)
    assert (answer.thought, answer.text) == ("hm", "Now.")
    assert [(call.name, call.values) for call in answer.calls] == [("write", {"path": "a<b", "n": [1, None]})] * 2
    assert all(call.is_ended for call in answer.calls)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [("{}", {}), ("null", {}), ('""', {}), ('"{\\"a\\": 1}"', {"a": 1}), ('{"a": "\\ud800"}', {"a": "\ud800"})],
)
def test_arguments_may_be_an_object_or_the_text_of_one(
    read: Any, json_markup: Markup, arguments: str, values: Any
) -> None:
    answer = read(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>', markup=json_markup)
    assert answer.calls[0].values == values
    answer.calls[0].arguments.encode()


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize(
    "inside",
    [
        "", "{", "5", "[]", "null",
        '{"arguments": {}}', '{"name": 5}', '{"name": ""}', '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{"}', '{"name": "f", "arguments": {"a": NaN}}', '[{"name": "f"}, {"x": 1}]',
        "[" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_call_is_text_without_its_markers(
    read: Any, json_markup: Markup, at: int | None, inside: str
) -> None:
    answer = read(f"See: <tool_call>{inside}</tool_call>", at, markup=json_markup)
    assert (answer.text, answer.calls) == (f"See: {inside}", [])


@pytest.mark.parametrize("at", SIZES)
def test_text_around_what_is_no_call_keeps_its_spaces(read: Any, json_markup: Markup, at: int | None) -> None:
    answer = read("A \n<tool_call> b </tool_call> c", at, markup=json_markup)
    assert answer.text == "A \n b  c"


@pytest.mark.parametrize("at", SIZES)
def test_a_call_that_is_cut_is_dropped_and_one_that_only_lacks_its_end_is_read(
    read: Any, json_markup: Markup, at: int | None
) -> None:
    call = 'So:<tool_call>{"name": "f", "arguments": {}}'
    assert (read(call, at, markup=json_markup, was_cut=True).calls) == []
    assert read(call, at, markup=json_markup, was_cut=True).text == "So:"
    assert [found.name for found in read(call, at, markup=json_markup).calls] == ["f"]
    assert read(call[:-1], at, markup=json_markup).text == "So:" + call[:-1].removeprefix("So:<tool_call>")


@pytest.mark.parametrize("at", SIZES)
def test_one_pair_of_markers_may_hold_several_calls(read: Any, at: int | None) -> None:
    markup = build_markup(pythonic.parse_tool_call, "<|tool_call_start|>", "<|tool_call_end|>")
    answer = read("Hm.<|tool_call_start|>[f(x=1), g(y='a')]<|tool_call_end|>", at, markup=markup)
    assert [(call.name, call.values) for call in answer.calls] == [("f", {"x": 1}), ("g", {"y": "a"})]
    assert answer.text == "Hm."


@pytest.mark.parametrize("at", SIZES)
def test_a_family_without_an_end_marker_calls_until_the_answer_ends(read: Any, at: int | None) -> None:
    markup = build_markup(mistral.parse_tool_call, "[TOOL_CALLS]", "")
    answer = read('Hm. [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', at, markup=markup)
    assert [(call.name, call.values) for call in answer.calls] == [("f", {"a": 1}), ("g", {})]
    assert (answer.text, answer.thought) == ("Hm.", "")
    assert read('[TOOL_CALLS]f[ARGS]{"a": 1}', at, markup=markup, was_cut=True).calls == []


def test_the_models_own_id_is_kept(read: Any) -> None:
    markup = build_markup(mistral.parse_tool_call, "[TOOL_CALLS]", "")
    call = [{"name": "f", "arguments": {}, "id": "abc123XYZ"}]
    assert read(f"[TOOL_CALLS]{json.dumps(call)}", markup=markup).calls[0].id == "abc123XYZ"


def test_a_parser_is_told_of_the_tools(read: Any, tool: Any) -> None:
    markup = build_markup(glm47.parse_tool_call)
    call = "<tool_call>f<arg_key>a</arg_key><arg_value>5</arg_value></tool_call>"
    text, number = (tool("f", a={"type": kind}) for kind in ("string", "integer"))
    assert read(call, markup=markup, tools=[text]).calls[0].values == {"a": "5"}
    assert read(call, markup=markup, tools=[number]).calls[0].values == {"a": 5}


@pytest.mark.parametrize("at", SIZES)
def test_inside_a_thought_json_calls_are_told_from_talk_about_them(
    read: Any, json_markup: Markup, at: int | None
) -> None:
    talk = read("a <tool_call> holds JSON</think>Yes.", at, markup=json_markup, opens_thought=True)
    assert (talk.thought, talk.text) == ("a <tool_call> holds JSON", "Yes.")
    call = read('so <tool_call>\n{"name": "f"}</tool_call>', at, markup=json_markup, opens_thought=True)
    assert (call.thought, call.text, call.calls[0].name) == ("so", "", "f")
