"""`tools`, `tool_choice` and `response_format` as the chat dialect writes them."""

from __future__ import annotations

from typing import Any

import msgspec

from server.api.decoding import show_value
from server.api.generation.asked import Format, ToolRule
from server.api.generation.tools import build_tool, check_tools
from server.errors import InvalidRequest, UnsupportedParameter
from server.text.tools import Tool


class FunctionDefinition(msgspec.Struct, frozen=True):
    """What a tool is called, and what it takes."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Accepted without effect: a call that must be made follows the schema anyway."""


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool that the client offers."""

    function: FunctionDefinition | None = None
    type: str = "function"


class SchemaFormat(msgspec.Struct, frozen=True):
    """`response_format.json_schema`."""

    schema: dict[str, Any] | bool | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format`."""

    type: str
    json_schema: SchemaFormat | None = None


TOOLS_EXPECTED = {
    "tools": "a list of tools",
    "tools[]": 'an object like {"type": "function", "function": {...}}',
    "tools[].type": '"function"',
    "tools[].function": "an object with a name and parameters",
    "tools[].function.name": "a string",
    "tools[].function.description": "a string",
    "tools[].function.parameters": "a JSON schema",
    "tools[].function.strict": "true or false",
    "tool_choice": '"auto", "none", "required" or an object that names a function',
    "parallel_tool_calls": "true or false",
    "response_format": 'an object with a type: "text", "json_object" or "json_schema"',
    "response_format.type": '"text", "json_object" or "json_schema"',
    "response_format.json_schema": "an object with a name and a schema",
    "response_format.json_schema.schema": "a JSON schema",
    "response_format.json_schema.name": "a string",
    "response_format.json_schema.description": "a string",
    "response_format.json_schema.strict": "true or false",
}
"""What each field may be, in words."""


def read_tools(definitions: list[ToolDefinition] | None, rule: ToolRule) -> tuple[Tool, ...]:
    """The tools of a request. Raises InvalidRequest."""
    tools = tuple(_read_tool(each, f"tools[{index}]") for index, each in enumerate(definitions or ()))
    check_tools(tools, rule, "tools")
    return tools


def read_tool_rule(choice: str | dict[str, Any] | None, parallel: bool | None) -> ToolRule:
    """Whether and which tools must be called. Raises InvalidRequest."""
    together = parallel is not False
    match choice:
        case None | "auto":
            return ToolRule("auto", parallel=together)
        case "none":
            return ToolRule("none")
        case "required" | "any":
            return ToolRule("required", parallel=together)
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return ToolRule("required", name, parallel=False)
        case _:
            raise InvalidRequest(
                f"`tool_choice` must be {TOOLS_EXPECTED['tool_choice']}; {show_value(choice)} was given.",
                param="tool_choice",
            )


def read_format(response_format: ResponseFormat | None) -> Format:
    """What the answer's text must be. Raises InvalidRequest."""
    if response_format is None:
        return Format()
    match response_format.type:
        case "text":
            return Format()
        case "json_object":
            return Format("json_object")
        case "json_schema":
            return _read_schema(response_format.json_schema)
        case other:
            raise InvalidRequest(
                f"`response_format.type` must be {TOOLS_EXPECTED['response_format.type']}; "
                f"{show_value(other)} was given.",
                param="response_format.type",
            )


def _read_schema(given: SchemaFormat | None) -> Format:
    param = "response_format.json_schema.schema" if given is not None else "response_format.json_schema"
    if given is None or given.schema is None:
        raise InvalidRequest(f"`{param}` is missing; it must be {TOOLS_EXPECTED[param]}.", param=param)
    return Format("json_schema", given.schema, param)


def _read_tool(definition: ToolDefinition, where: str) -> Tool:
    if definition.type != "function":
        raise UnsupportedParameter(
            f'`{where}.type` must be "function"; {show_value(definition.type)} tools are not run by this server.',
            param=f"{where}.type",
        )
    function = definition.function
    if function is None:
        raise InvalidRequest(
            f"`{where}.function` is missing; it must be {TOOLS_EXPECTED['tools[].function']}.",
            param=f"{where}.function",
        )
    return build_tool(function.name, function.description, function.parameters, f"{where}.function")
