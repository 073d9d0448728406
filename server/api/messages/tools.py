"""`tools`, `tool_choice` and the answer's format as the Messages dialect writes them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from server.api.decoding import show_value
from server.api.generation.asked import Format, ToolRule
from server.api.generation.tools import build_tool, check_tools
from server.errors import InvalidRequest, UnsupportedParameter
from server.text.tools import Tool

log = logging.getLogger(__name__)

RUN_BY_ANTHROPIC = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "mcp_toolset", "advisor")
"""How the types of tools begin that Anthropic's servers run themselves; dates follow."""


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool that the client offers."""

    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    """None or "custom" for a tool with a schema of its own; otherwise one that Anthropic defines."""


class ToolChoice(msgspec.Struct, frozen=True):
    """`tool_choice`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class JsonFormat(msgspec.Struct, frozen=True):
    """`output_config.format`, and its older name `output_format`."""

    type: str
    schema: dict[str, Any] | bool | None = None


TOOLS_EXPECTED = {
    "tools": "a list of tools",
    "tools[]": "an object with a name and an input_schema",
    "tools[].type": "a string",
    "tools[].name": "a string",
    "tools[].description": "a string",
    "tools[].input_schema": 'the JSON schema of an object, like {"type": "object", "properties": {}}',
    "tool_choice": 'an object like {"type": "auto"}',
    "tool_choice.type": '"auto", "any", "tool" or "none"',
    "tool_choice.name": "the name of one of the tools",
    "tool_choice.disable_parallel_tool_use": "true or false",
    "output_config.format": 'an object like {"type": "json_schema", "schema": {}}',
    "output_config.format.type": '"json_schema"',
    "output_config.format.schema": "a JSON schema",
    "output_format": 'an object like {"type": "json_schema", "schema": {}}',
    "output_format.type": '"json_schema"',
    "output_format.schema": "a JSON schema",
}
"""What each field may be, in words."""


def read_tools(definitions: list[ToolDefinition] | None, rule: ToolRule) -> tuple[Tool, ...]:
    """The tools that the model may call. Raises InvalidRequest and UnsupportedParameter.

    A tool that Anthropic's servers run is left out beside others: the model does its work with those. Without others,
    or when it must be called, it is refused: Claude Code searches the web by a request with that one tool, and a
    model that was not told of it would make its results up.
    """
    given = list(enumerate(definitions or ()))
    ours = [(index, tool) for index, tool in given if not _is_run_by_anthropic(tool)]
    for index, tool in given:
        if _is_run_by_anthropic(tool):
            if not ours or (rule.name is not None and rule.name == tool.name):
                raise _build_unsupported(tool, f"tools[{index}]")
            log.debug("a tool that only Anthropic runs was left out: %s", ascii(str(tool.type)[:40]))
    tools = tuple(_read_tool(tool, f"tools[{index}]") for index, tool in ours)
    check_tools(tools, rule, "tools")
    return tools


def read_tool_rule(choice: ToolChoice | None) -> ToolRule:
    """Whether and which tools must be called. Raises InvalidRequest."""
    if choice is None:
        return ToolRule()
    together = not choice.disable_parallel_tool_use
    match choice.type:
        case "auto":
            return ToolRule("auto", parallel=together)
        case "none":
            return ToolRule("none")
        case "any":
            return ToolRule("required", parallel=together)
        case "tool" if choice.name:
            return ToolRule("required", choice.name, parallel=False)
        case "tool":
            raise _build_invalid("tool_choice.name", choice.name)
        case other:
            raise _build_invalid("tool_choice.type", other)


def read_format(given: JsonFormat | None, param: str) -> Format:
    """What the answer's text must be; `param` is the field that says it. Raises InvalidRequest."""
    if given is None:
        return Format()
    if given.type != "json_schema":
        raise _build_invalid(f"{param}.type", given.type)
    if given.schema is None:
        raise _build_invalid(f"{param}.schema", None)
    return Format("json_schema", given.schema, f"{param}.schema")


def _is_run_by_anthropic(tool: ToolDefinition) -> bool:
    return tool.input_schema is None and (tool.type or "").startswith(RUN_BY_ANTHROPIC)


def _read_tool(tool: ToolDefinition, where: str) -> Tool:
    if tool.input_schema is None and tool.type not in (None, "custom"):
        raise _build_unsupported(tool, where)
    if tool.name is None:
        raise InvalidRequest(f"`{where}.name` is missing; it must be a string.", param=f"{where}.name")
    schema, param = tool.input_schema, f"{where}.input_schema"
    if schema is None or schema.get("type", "object") != "object":
        given = "is missing" if schema is None else f"is one of type {show_value(schema['type'])}"
        raise InvalidRequest(f"`{param}` {given}; it must be {TOOLS_EXPECTED['tools[].input_schema']}.", param=param)
    return build_tool(tool.name, tool.description, schema, where)


def _build_unsupported(tool: ToolDefinition, where: str) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"`{where}` is a tool of type {show_value(tool.type)}, which only Anthropic's models and servers know; this "
        "server takes tools with a name, a description and an input_schema.",
        param=f"{where}.type",
    )


def _build_invalid(param: str, given: Any) -> InvalidRequest:
    return InvalidRequest(f"`{param}` must be {TOOLS_EXPECTED[param]}; {show_value(given)} was given.", param=param)
