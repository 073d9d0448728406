from __future__ import annotations

from typing import Any

import msgspec
import pytest

from server.api.generation.asked import Format, ToolRule
from server.api.messages.tools import JsonFormat, ToolChoice, ToolDefinition, read_format, read_tool_rule, read_tools
from server.errors import InvalidRequest, UnsupportedParameter
from server.text.tools import Tool

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "Read", "description": "Reads a file.", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


def read_rule(choice: dict[str, Any] | None) -> ToolRule:
    return read_tool_rule(msgspec.convert(choice, ToolChoice | None))


def read(*tools: dict[str, Any], choice: dict[str, Any] | None = None) -> tuple[Tool, ...]:
    return read_tools(msgspec.convert(list(tools), list[ToolDefinition]), read_rule(choice))


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"type": "custom"},
        {"type": None},
        {"cache_control": {"type": "ephemeral"}, "defer_loading": True, "strict": True, "eager_input_streaming": True},
        {"type": "bash_20250124"},
    ],
)
def test_a_tool_with_a_schema_is_one_of_ours(extra: dict[str, Any]) -> None:
    (tool,) = read({**READ, **extra})
    assert (tool.name, tool.parameters) == ("Read", SCHEMA)
    function = {"name": "Read", "description": "Reads a file.", "parameters": SCHEMA}
    assert tool.definition == {"type": "function", "function": function}


def test_a_schema_without_properties_or_type_is_filled_up_for_templates() -> None:
    (tool,) = read({"name": "now", "input_schema": {}})
    assert tool.parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    "kind",
    ["web_search_20260318", "web_fetch_20250910", "code_execution_20250522", "advisor_20260301", "mcp_toolset",
     "tool_search_tool_bm25_20251119", "tool_search_tool_regex"],
)  # fmt: skip
def test_a_tool_that_anthropic_runs_is_left_out_beside_others_and_refused_alone(kind: str) -> None:
    assert [tool.name for tool in read({"type": kind, "name": "x"}, READ)] == ["Read"]
    with pytest.raises(UnsupportedParameter, match=kind) as caught:
        read({"type": kind, "name": "x"})
    assert caught.value.param == "tools[0].type"


def test_a_tool_that_anthropic_runs_cannot_be_the_one_that_must_be_called() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read(READ, SEARCH, choice={"type": "tool", "name": "web_search"})
    assert caught.value.param == "tools[1].type"


@pytest.mark.parametrize("kind", ["bash_20250124", "text_editor_20250728", "computer_20250124", "memory_20250818"])
def test_a_tool_whose_schema_only_anthropics_models_know_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedParameter, match="input_schema") as caught:
        read(READ, {"type": kind, "name": "x"})
    assert caught.value.param == "tools[1].type"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"name": "x"}, "tools[0].input_schema"),
        ({"name": "x", "input_schema": {"type": "array"}}, "tools[0].input_schema"),
        ({"input_schema": SCHEMA}, "tools[0].name"),
        ({"name": "no spaces", "input_schema": SCHEMA}, "tools[0].name"),
    ],
)
def test_a_tool_that_cannot_be_called_is_refused(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tool)
    assert caught.value.param == param


def test_names_must_differ() -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        read(READ, READ)


@pytest.mark.parametrize(
    ("choice", "rule"),
    [
        (None, ToolRule()),
        ({"type": "auto"}, ToolRule("auto")),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolRule("auto", parallel=False)),
        ({"type": "any"}, ToolRule("required")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolRule("required", parallel=False)),
        ({"type": "tool", "name": "Read"}, ToolRule("required", "Read", parallel=False)),
        ({"type": "none"}, ToolRule("none")),
    ],
)
def test_a_choice_becomes_a_rule(choice: dict[str, Any] | None, rule: ToolRule) -> None:
    assert read_rule(choice) == rule


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "required"}, "tool_choice.type"),
        ({"type": "tool"}, "tool_choice.name"),
        ({"type": "tool", "name": "Write"}, "tool_choice"),
    ],
)
def test_a_choice_of_nothing_is_refused(choice: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(READ, choice=choice)
    assert caught.value.param == param


def test_a_format_is_a_schema_or_refused_by_its_name() -> None:
    assert read_format(None, "output_format") == Format()
    given = JsonFormat("json_schema", SCHEMA)
    assert read_format(given, "output_format") == Format("json_schema", SCHEMA, "output_format.schema")
    for broken, param in (("text", "output_format.type"), ("json_schema", "output_format.schema")):
        with pytest.raises(InvalidRequest) as caught:
            read_format(JsonFormat(broken), "output_format")
        assert caught.value.param == param
