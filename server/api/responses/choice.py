"""`tool_choice` of a Responses request: which of its tools may or must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from server.api.decoding import show_value
from server.api.generation.asked import ToolRule
from server.api.generation.tools import check_tools
from server.api.responses.tools import Toolbox, join_name
from server.api.responses.wire import EXPECTED
from server.errors import InvalidRequest, UnsupportedParameter


def apply_choice(
    toolbox: Toolbox, choice: str | dict[str, Any] | None, parallel: bool | None
) -> tuple[Toolbox, ToolRule]:
    """The tools that may be called, and the rule for them. Raises InvalidRequest and UnsupportedParameter."""
    allowed, rule = _read(toolbox, choice, parallel is not False)
    check_tools(allowed.tools, rule, "tools")
    return allowed, rule


def _read(toolbox: Toolbox, choice: str | dict[str, Any] | None, together: bool) -> tuple[Toolbox, ToolRule]:
    match choice:
        case None | "auto":
            return toolbox, ToolRule("auto", parallel=together)
        case "none":
            return toolbox, ToolRule("none")
        case "required":
            return toolbox, ToolRule("required", parallel=together)
        case {"type": "function" | "custom", "name": str(name)}:
            return toolbox, ToolRule("required", _find_name(toolbox, name, choice.get("namespace")), parallel=False)
        case {"type": "allowed_tools", "mode": ("auto" | "required") as mode, "tools": list(entries)}:
            return _keep_allowed(toolbox, entries), ToolRule(mode, parallel=together)
        case {"type": str(kind)} if kind not in ("function", "custom", "allowed_tools"):
            raise UnsupportedParameter(
                f"`tool_choice` asks for {show_value(kind)}, a tool that this server does not run.", param="tool_choice"
            )
        case _:
            raise InvalidRequest(
                f"`tool_choice` must be {EXPECTED['tool_choice']}; {show_value(choice)} was given.", param="tool_choice"
            )


def _find_name(toolbox: Toolbox, name: str, namespace: Any) -> str:
    """The name that the model knows for one that the client knows; unknown names are left for the check of all."""
    joined = join_name(namespace if isinstance(namespace, str) else None, name)
    if joined in toolbox.forms:
        return joined
    return next((known for known, form in toolbox.forms.items() if form.name == name), joined)


def _keep_allowed(toolbox: Toolbox, entries: Sequence[Any]) -> Toolbox:
    """The tools that are named; the model is told of no others."""
    names = {
        _find_name(toolbox, entry["name"], entry.get("namespace"))
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }
    missing = sorted(names - toolbox.forms.keys())
    if missing:
        raise InvalidRequest(
            f"`tool_choice.tools` names {show_value(missing[0])}, which is none of the `tools`.", param="tool_choice"
        )
    return msgspec.structs.replace(toolbox, tools=tuple(tool for tool in toolbox.tools if tool.name in names))
