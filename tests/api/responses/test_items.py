"""A conversation of items becomes the turns that a template takes, and nothing that agents send back fails it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from server.api.responses.items import UNREADABLE, Item, build_turns, find_brought_tools
from server.errors import InvalidRequest, UnsupportedParameter


def turns(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    return build_turns(instructions, [Item(f"input[{index}]", item) for index, item in enumerate(items)])


def call(call_id: str, name: str = "look", arguments: Any = '{"city": "Wien"}', **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **fields}


def result(call_id: str, output: Any = "sunny") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


HI = {"role": "user", "content": "hi"}


def built(call_id: str, name: str = "look", arguments: Any = None) -> dict[str, Any]:
    given = {"city": "Wien"} if arguments is None else arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


def test_messages_in_both_forms() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert turns(HI, said("yes"), {"type": "message", "role": "user", "content": parts}) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "ab"},
    ]


def test_instructions_and_system_and_developer_messages_are_one_at_the_front() -> None:
    late = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "late"}]}
    built_turns = turns({"role": "system", "content": "early"}, HI, late, instructions="first")
    assert built_turns == [{"role": "system", "content": "first\n\nearly\n\nlate"}, {"role": "user", "content": "hi"}]


def test_thoughts_text_and_calls_are_one_turn_and_results_follow() -> None:
    assert turns(HI, thought("Hm."), said("I look."), call("c1"), call("c2"), result("c1"), result("c2", "rain")) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [built("c1"), built("c2")],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "tool", "content": "rain", "tool_call_id": "c2"},
    ]


def test_answers_of_two_turns_stay_two() -> None:
    assert [turn["content"] for turn in turns(said("one"), said("two"))] == ["one", "two"]
    assert [turn.get("reasoning_content") for turn in turns(said("one"), thought("Hm."), said("two"))] == [None, "Hm."]
    assert [turn.get("reasoning_content") for turn in turns(call("c1"), thought("Hm."), call("c2"))] == [None, "Hm."]


def test_text_behind_a_call_stays_with_it() -> None:
    (turn,) = turns(said("a"), call("c1"), said("b"))
    assert (turn["content"], turn["tool_calls"]) == ("ab", [built("c1")])


def test_thoughts_in_either_field_are_read_and_those_that_are_sealed_are_not() -> None:
    open_thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
    assert turns(sealed, open_thought, thought("Well."), said("x")) == [
        {"role": "assistant", "content": "x", "reasoning_content": "Hm.\n\nWell."}
    ]
    assert turns(HI, sealed) == [HI]


def test_arguments_that_are_no_object_are_kept_word_for_word() -> None:
    (turn,) = turns(call("c1", arguments="{oops"), call("c2", arguments=None), call("c3", arguments={"a": 1}))
    assert [each["function"]["arguments"] for each in turn["tool_calls"]] == [{"arguments": "{oops"}, {}, {"a": 1}]


def test_a_call_of_a_namespace_has_the_name_that_the_model_knows() -> None:
    (turn,) = turns(call("c1", namespace="mail"), call("c2", namespace="functions"))
    assert [each["function"]["name"] for each in turn["tool_calls"]] == ["mail.look", "look"]


@pytest.mark.parametrize(
    ("item", "name", "arguments"),
    [
        ({"type": "custom_tool_call", "name": "apply_patch", "input": "***"}, "apply_patch", {"input": "***"}),
        ({"type": "local_shell_call", "action": {"command": ["ls"]}}, "local_shell", {"command": ["ls"]}),
        ({"type": "shell_call", "action": {"commands": ["ls"]}}, "shell", {"commands": ["ls"]}),
        ({"type": "apply_patch_call", "operation": {"type": "delete_file"}}, "apply_patch", {"type": "delete_file"}),
        ({"type": "tool_search_call", "arguments": {"query": "x"}}, "tool_search", {"query": "x"}),
        ({"type": "tool_search_call", "arguments": "x"}, "tool_search", {"arguments": "x"}),
    ],
)
def test_calls_of_every_kind_are_calls(item: dict[str, Any], name: str, arguments: dict[str, Any]) -> None:
    assert turns({**item, "call_id": "c1"}) == [
        {"role": "assistant", "content": "", "tool_calls": [built("c1", name, arguments)]}
    ]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("function_call_output", "output"),
        ("custom_tool_call_output", "output"),
        ("local_shell_call_output", "output"),
        ("shell_call_output", "output"),
        ("apply_patch_call_output", "output"),
        ("tool_search_output", "tools"),
    ],
)
def test_results_of_every_kind_are_results(kind: str, field: str) -> None:
    assert turns({"type": kind, "call_id": "c1", field: "done"}) == [
        {"role": "tool", "content": "done", "tool_call_id": "c1"}
    ]


def test_a_call_of_an_mcp_server_brings_its_result() -> None:
    item = {"type": "mcp_call", "id": "mcp_1", "name": "look", "arguments": "{}", "output": "sunny"}
    assert turns(item) == [
        {"role": "assistant", "content": "", "tool_calls": [built("mcp_1", arguments={})]},
        {"role": "tool", "content": "sunny", "tool_call_id": "mcp_1"},
    ]


def test_a_call_without_an_id_and_a_result_without_output_fail_nothing() -> None:
    assert turns({"type": "function_call", "name": "look"}, {"type": "function_call_output"}) == [
        {"role": "assistant", "content": "", "tool_calls": [built("", arguments={})]},
        {"role": "tool", "content": "", "tool_call_id": ""},
    ]


def test_what_another_agent_wrote_is_a_message() -> None:
    item = {"type": "agent_message", "author": "/root", "content": [{"type": "input_text", "text": "Look at it."}]}
    assert turns(item) == [{"role": "user", "content": "Look at it."}]
    assert turns(HI, {"type": "agent_message", "content": [{"type": "encrypted_content"}]}) == [HI]


def test_a_message_of_a_kind_that_nobody_knows_is_a_message() -> None:
    assert turns({"type": "of_next_year", "role": "user", "content": "hi"}) == [HI]


@pytest.mark.parametrize("kind", ["web_search_call", "image_generation_call", "mcp_list_tools", "of_next_year", ""])
def test_items_without_text_are_left_out_and_named_in_the_log(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert turns(HI, {"type": kind, "id": "x_1", "status": "completed"}) == [HI]
    assert repr(kind) in caplog.text


@pytest.mark.parametrize("kind", sorted(UNREADABLE))
def test_items_that_stand_for_unknown_text_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        turns(HI, {"type": kind, "id": "x_1", "encrypted_content": "gAAA"})
    assert caught.value.param == "input[1].type"
    assert kind in caught.value.message


def test_the_kind_of_an_item_without_type() -> None:
    assert [Item("", fields).kind for fields in (HI, {"id": "msg_1"}, {}, {"type": 5, "role": "user"})] == [
        "message",
        "item_reference",
        "",
        "message",
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": {}}, "input[0].content"),
        ({"role": "critic", "content": "x"}, "input[0].role"),
        ({"type": "message", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input[0].content[0].type"),
        ({"role": "system", "content": [{"type": "input_audio"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0].type"),
        ({"type": "function_call", "call_id": "c"}, "input[0].name"),
    ],
)
def test_what_cannot_be_read_is_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        turns(item)
    assert caught.value.param == param


def test_an_image_is_told_that_there_is_text_only() -> None:
    with pytest.raises(InvalidRequest, match="takes text only"):
        turns({"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]})


def test_tools_that_items_bring() -> None:
    items = [
        Item(
            "input[0]", {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "a"}]}
        ),
        Item(
            "input[1]", {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function", "name": "b"}, 5]}
        ),
        Item("input[2]", {"type": "message", "role": "user", "content": "", "tools": [{"name": "c"}]}),
        Item("input[3]", {"type": "additional_tools"}),
    ]
    assert [(given.where, given.definition.get("name")) for given in find_brought_tools(items)] == [
        ("input[0].tools[0]", "a"),
        ("input[1].tools[0]", "b"),
        ("input[1].tools[1]", None),
    ]


@pytest.mark.timeout(60)  # each text put to all before it took over 200 s
def test_many_texts_of_one_turn_are_joined_once() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = turns(call, *[{"role": "assistant", "content": "x" * 800}] * 35_000)
    assert [len(turn["content"]) for turn in said] == [800 * 35_000]
    thought = turns(*[{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 800}]}] * 20_000)
    assert [len(turn["reasoning_content"]) for turn in thought] == [802 * 20_000 - 2]
