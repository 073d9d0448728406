"""Tools as clients define them, in any dialect, brought into one form; names and numbers checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.api.decoding import show_value
from server.api.generation.asked import ToolRule
from server.errors import InvalidRequest
from server.text.tools import Tool

TOOLS_MOST = 512
"""OpenAI takes 128; agents with several MCP servers send more."""

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}\Z")
"""OpenAI takes 64 letters, digits, _ and -; MCP names have dots, colons and slashes too."""


def build_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None, where: str) -> Tool:
    """One tool; `where` is its place in the request. Raises InvalidRequest."""
    if not _NAME.match(name):
        raise InvalidRequest(
            f"`{where}.name` must be 1 to 128 letters, digits or any of _ . : / -; {show_value(name)} was given.",
            param=f"{where}.name",
        )
    schema = dict(parameters or {})
    kind = schema.get("type", "object")
    if kind != "object":
        raise InvalidRequest(
            f"`{where}.parameters` must be the JSON schema of an object; one of type {show_value(kind)} was given.",
            param=f"{where}.parameters",
        )
    # Templates walk through `properties` without looking whether there are any.
    shown = {"type": "object", "properties": {}, **schema}
    function = {"name": name, "description": description or "", "parameters": shown}
    return Tool(name, shown, {"type": "function", "function": function})


def check_tools(tools: Sequence[Tool], rule: ToolRule, where: str) -> None:
    """Raise InvalidRequest for too many tools, one name twice, or a choice of what is not there."""
    if len(tools) > TOOLS_MOST:
        raise InvalidRequest(f"`{where}` may have at most {TOOLS_MOST} tools; {len(tools):,} were given.", param=where)
    names = [tool.name for tool in tools]
    twice = next((name for index, name in enumerate(names) if name in set(names[:index])), None)
    if twice is not None:
        raise InvalidRequest(f"`{where}` has the name {show_value(twice)} twice; names must differ.", param=where)
    if rule.choice == "required" and not tools:
        raise InvalidRequest("`tool_choice` asks for a call, but there are no `tools`.", param="tool_choice")
    if rule.name is not None and rule.name not in names:
        raise InvalidRequest(
            f"`tool_choice` names {show_value(rule.name)}, which is none of the `tools`.", param="tool_choice"
        )
