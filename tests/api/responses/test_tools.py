"""Tools in every form that agents send: what the model is told, and what its calls are called on the wire."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from server.api.responses.tools import REFUSED, Form, Given, Toolbox, read_toolbox
from server.errors import InvalidRequest, UnsupportedParameter

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk end"},
}


def read(*definitions: dict[str, Any], brought: tuple[dict[str, Any], ...] = ()) -> Toolbox:
    return read_toolbox(
        [Given(f"tools[{index}]", each) for index, each in enumerate(definitions)],
        [Given(f"input[0].tools[{index}]", each) for index, each in enumerate(brought)],
    )


def names(toolbox: Toolbox) -> list[str]:
    return [tool.name for tool in toolbox.tools]


def test_a_function_is_told_as_templates_take_it() -> None:
    toolbox = read(LOOK)
    function = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
    assert toolbox.tools[0].definition == {"type": "function", "function": function}
    assert toolbox.find_form("look") == Form("look")
    assert toolbox.definitions == (LOOK,)


def test_a_custom_tool_is_a_function_of_one_text_with_its_grammar() -> None:
    toolbox = read(PATCH)
    (tool,) = toolbox.tools
    assert tool.parameters["required"] == ["input"]
    assert tool.parameters["properties"]["input"]["type"] == "string"
    assert "start: begin hunk end" in tool.parameters["properties"]["input"]["description"]
    assert toolbox.find_form("apply_patch") == Form("apply_patch", is_custom=True)
    assert toolbox.definitions == (PATCH,)


def test_tools_of_a_namespace_carry_its_name_and_go_back_without() -> None:
    space = {"type": "namespace", "name": "mcp__mail", "description": "Mail.", "tools": [LOOK, PATCH]}
    toolbox = read(LOOK, space)
    assert names(toolbox) == ["look", "mcp__mail.look", "mcp__mail.apply_patch"]
    assert toolbox.find_form("mcp__mail.look") == Form("look", "mcp__mail")
    assert toolbox.find_form("mcp__mail.apply_patch") == Form("apply_patch", "mcp__mail", is_custom=True)
    assert toolbox.definitions == (LOOK, space)


def test_the_namespace_functions_is_none() -> None:
    toolbox = read({"type": "namespace", "name": "functions", "description": "", "tools": [LOOK]})
    assert names(toolbox) == ["look"]
    assert toolbox.find_form("look") == Form("look")


def test_a_name_that_the_model_made_up_is_its_own() -> None:
    assert read(LOOK).find_form("fly") == Form("fly")


def test_tools_that_agents_send_everywhere_are_left_out_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    kinds = (
        "web_search",
        "web_search_preview",
        "image_generation",
        "local_shell",
        "shell",
        "tool_search",
        "apply_patch",
    )
    with caplog.at_level(logging.DEBUG):
        toolbox = read(LOOK, *({"type": kind} for kind in kinds), {"type": "of_next_year", "name": "look"})
    assert names(toolbox) == ["look"]
    assert toolbox.definitions == (LOOK,)
    assert all(repr(kind) in caplog.text for kind in (*kinds, "of_next_year"))


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_tools_that_somebody_asked_for_on_purpose_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read(LOOK, {"type": kind})
    assert caught.value.param == "tools[1].type"
    assert kind in caught.value.message


@pytest.mark.parametrize(
    ("definition", "param"),
    [
        ({}, "tools[0].type"),
        ({"type": 1}, "tools[0].type"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "function", "function": {"name": "look"}}, "tools[0].name"),
        ({"type": "function", "name": "no blanks"}, "tools[0].name"),
        ({"type": "function", "name": "look", "description": 1}, "tools[0].description"),
        ({"type": "function", "name": "look", "parameters": []}, "tools[0].parameters"),
        ({"type": "function", "name": "look", "parameters": {"type": "string"}}, "tools[0].parameters"),
        ({"type": "custom"}, "tools[0].name"),
        ({"type": "namespace", "tools": []}, "tools[0].name"),
        ({"type": "namespace", "name": "a"}, "tools[0].tools"),
        ({"type": "namespace", "name": "a", "tools": ["look"]}, "tools[0].tools[0].type"),
        ({"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}, "tools[0].tools[0].type"),
        ({"type": "namespace", "name": "a", "tools": [{"type": "function"}]}, "tools[0].tools[0].name"),
    ],
)
def test_a_wrong_definition_is_named(definition: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(definition)
    assert caught.value.param == param


def test_tools_that_the_conversation_brings_are_added_once() -> None:
    fly = {"type": "function", "name": "fly"}
    toolbox = read(LOOK, brought=(fly, LOOK, fly))
    assert names(toolbox) == ["look", "fly"]
    assert toolbox.definitions == (LOOK,)


def test_definitions_are_repeated_with_what_clients_expect_in_them() -> None:
    space = {"type": "namespace", "name": "a", "tools": []}
    fly = {"type": "function", "name": "fly"}
    assert read(fly, space).definitions == (
        {**fly, "description": None, "parameters": None, "strict": None},
        {**space, "description": ""},
    )
