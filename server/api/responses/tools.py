"""The tools of a Responses request: what the model is told of them, and what their calls are called on the wire.

A model knows functions only. So a custom tool, which takes free text, is shown as a function of one string, and the
tools of a namespace as functions with its name before theirs; calls go back in the form that the client knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from server.api.decoding import show_value
from server.api.generation.tools import build_tool
from server.errors import InvalidRequest, UnsupportedParameter
from server.text.tools import Tool

CUSTOM_INPUT = "input"
"""The one argument under which a custom tool's text stands."""

PLAIN_NAMESPACE = "functions"
"""Codex puts tools that belong nowhere else into a namespace of this name, and knows them without it too."""

REFUSED = frozenset({"file_search", "code_interpreter", "mcp", "computer", "computer_use", "computer_use_preview"})
"""Tools that OpenAI runs and that somebody has to ask for on purpose: an answer without them is not what was wanted.

All others that are no functions (web_search, image_generation, local_shell, tool_search...) are left out of the
prompt: agents send them with every request, whatever the server, and go on without."""

log = logging.getLogger(__name__)


class Form(msgspec.Struct, frozen=True):
    """How the client knows a tool."""

    name: str
    namespace: str | None = None
    is_custom: bool = False
    """It takes free text."""


class Toolbox(msgspec.Struct, frozen=True):
    """The tools of one request."""

    tools: tuple[Tool, ...] = ()
    forms: Mapping[str, Form] = {}
    """By the names that the model knows."""
    definitions: tuple[dict[str, Any], ...] = ()
    """As the response repeats them."""

    def find_form(self, name: str) -> Form:
        """The form of a called tool; a name that the model made up is its own."""
        return self.forms.get(name) or Form(name)


class Given(msgspec.Struct, frozen=True):
    """A tool's definition, and its place in the request."""

    where: str
    definition: Mapping[str, Any]


def join_name(namespace: str | None, name: str) -> str:
    """The name under which the model knows a tool of a namespace."""
    return name if not namespace or namespace == PLAIN_NAMESPACE else f"{namespace}.{name}"


def read_toolbox(asked: Iterable[Given], brought: Iterable[Given] = ()) -> Toolbox:
    """The tools that the model is told of. Raises InvalidRequest and UnsupportedParameter.

    `brought` are those that items of the conversation bring along; of them the ones that are there already are left
    out, since a conversation may bring them again and again.
    """
    tools: list[Tool] = []
    forms: dict[str, Form] = {}
    definitions: list[dict[str, Any]] = []
    for given in asked:
        for tool, form in _read(given):
            tools.append(tool)
            forms[tool.name] = form
        if _kind(given) in _READERS:
            definitions.append(_repeat(given.definition))
    for tool, form in (read for given in brought for read in _read(given)):
        if tool.name not in forms:
            tools.append(tool)
            forms[tool.name] = form
    return Toolbox(tuple(tools), forms, tuple(definitions))


def _read(given: Given) -> Iterable[tuple[Tool, Form]]:
    kind = _kind(given)
    if kind in REFUSED:
        raise UnsupportedParameter(
            f"`{given.where}.type` is {show_value(kind)}, a tool that this server does not run; leave it out, or offer "
            "a function.",
            param=f"{given.where}.type",
        )
    reader = _READERS.get(kind)
    if reader is None:
        log.debug("a tool without effect in a request: %s", ascii(kind[:40]))
        return ()
    return reader(given)


def _read_function(given: Given, namespace: str | None = None) -> Iterator[tuple[Tool, Form]]:
    name, parameters = _read_text(given, "name"), given.definition.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise _build_fault(given, "parameters", "a JSON schema", parameters)
    tool = build_tool(join_name(namespace, name), _read_description(given), parameters, given.where)
    yield tool, Form(name, _shown_namespace(namespace))


def _read_custom(given: Given, namespace: str | None = None) -> Iterator[tuple[Tool, Form]]:
    name = _read_text(given, "name")
    text = {"type": "string", "description": _describe_input(given.definition.get("format"))}
    schema = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
    tool = build_tool(join_name(namespace, name), _read_description(given), schema, given.where)
    yield tool, Form(name, _shown_namespace(namespace), is_custom=True)


def _read_namespace(given: Given) -> Iterator[tuple[Tool, Form]]:
    namespace, children = _read_text(given, "name"), given.definition.get("tools")
    if not isinstance(children, list):
        raise _build_fault(given, "tools", "a list of tools", children)
    for index, child in enumerate(children):
        inner = Given(f"{given.where}.tools[{index}]", child if isinstance(child, dict) else {})
        match _kind(inner):
            case "function":
                yield from _read_function(inner, namespace)
            case "custom":
                yield from _read_custom(inner, namespace)
            case other:
                raise _build_fault(inner, "type", '"function" or "custom"', other)


_READERS = {"function": _read_function, "custom": _read_custom, "namespace": _read_namespace}


def _describe_input(form: Any) -> str:
    match form:
        case {"type": "grammar", "syntax": str(syntax), "definition": str(definition)}:
            return f"The text itself, not JSON. It must follow this grammar ({syntax}):\n{definition}"
        case _:
            return "The text itself, not JSON."


def _shown_namespace(namespace: str | None) -> str | None:
    return None if namespace == PLAIN_NAMESPACE else namespace


def _kind(given: Given) -> str:
    return _read_text(given, "type")


def _read_text(given: Given, field: str) -> str:
    value = given.definition.get(field)
    if not isinstance(value, str):
        raise _build_fault(given, field, "a string", value)
    return value


def _read_description(given: Given) -> str | None:
    description = given.definition.get("description")
    if description is not None and not isinstance(description, str):
        raise _build_fault(given, "description", "a string", description)
    return description


def _build_fault(given: Given, field: str, allowed: str, value: Any) -> InvalidRequest:
    param = f"{given.where}.{field}"
    fault = "is missing; it must" if value is None else "must"
    shown = "" if value is None else f"; {show_value(value)} was given"
    return InvalidRequest(f"`{param}` {fault} be {allowed}{shown}.", param=param)


def _repeat(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition with what the dialect's clients expect to find in it."""
    match definition.get("type"):
        case "function":
            return {"description": None, "parameters": None, "strict": None, **definition}
        case "namespace":
            return {"description": "", **definition}
        case _:
            return dict(definition)
