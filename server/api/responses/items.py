"""Brings the items of a conversation into the one form that every chat template takes.

Each kind of item is decided for itself: what carries text or a call is read, what carries neither is left out and
named in the debug log, and what stands for text that cannot be read here is refused by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from server.api.decoding import show_value
from server.api.generation.turns import build_call, put_system_first
from server.api.responses.parts import join_texts, read_message_text, read_output_text
from server.api.responses.tools import CUSTOM_INPUT, Given, join_name
from server.errors import InvalidRequest, UnsupportedParameter

ROLES = ("user", "assistant", "system", "developer")
"""Of messages. What has one of them, and content, is a message, of whatever kind a newer client says it is."""

UNREADABLE = frozenset(
    {"compaction", "compaction_summary", "context_compaction", "compaction_trigger", "item_reference"}
)
"""Items that stand for text which only their maker has."""

log = logging.getLogger(__name__)


class Item(msgspec.Struct, frozen=True):
    """One item, and its place in the request."""

    where: str
    fields: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Its type; a message and a reference may come without one."""
        kind = self.fields.get("type")
        if isinstance(kind, str):
            return kind
        return "message" if "role" in self.fields else "item_reference" if "id" in self.fields else ""


def build_turns(instructions: str | None, items: Iterable[Item]) -> list[dict[str, Any]]:
    """The conversation for a chat template. Raises InvalidRequest and UnsupportedParameter.

    Instructions and all system and developer messages become one system message at the front, in their order.
    Neighbouring items of the assistant make one turn, as a template writes it: thoughts, text, calls.
    """
    collected = _Turns(instructions)
    for item in items:
        collected.add(item)
    collected.close_answer()
    return put_system_first(collected.system_texts, collected.turns)


def find_brought_tools(items: Iterable[Item]) -> Iterator[Given]:
    """Definitions of tools that items bring into the conversation."""
    for item in items:
        definitions = item.fields.get("tools")
        if item.kind in ("additional_tools", "tool_search_output") and isinstance(definitions, list):
            for index, definition in enumerate(definitions):
                yield Given(f"{item.where}.tools[{index}]", definition if isinstance(definition, dict) else {})


class _Turns:
    """Turns as they are collected; of the assistant's, the last one stays open for what follows.

    Its texts are joined when it is closed: 35,000 of them, each put to those before, took minutes.
    """

    def __init__(self, instructions: str | None) -> None:
        self.system_texts = [instructions] if instructions else []
        self.turns: list[dict[str, Any]] = []
        self._answer: dict[str, Any] | None = None
        self._texts: list[str] = []
        self._thoughts: list[str] = []

    def add(self, item: Item) -> None:
        match item.kind:
            case "message":
                self._add_message(item)
            case "agent_message":
                self._add_letter(join_texts(item.fields.get("content")))
            case "reasoning":
                self._add_thought(join_texts(item.fields.get("content")) or join_texts(item.fields.get("summary")))
            case kind if kind in _CALLS:
                self._add_call(item, *_CALLS[kind](item))
            case kind if kind in _RESULTS:
                self._add_result(item, item.fields.get(_RESULTS[kind]))
            case kind if kind in UNREADABLE:
                raise UnsupportedParameter(
                    f"`{item.where}` is of type {show_value(kind)}, whose text cannot be read by this server; send the "
                    "messages themselves.",
                    param=f"{item.where}.type",
                )
            case _ if item.fields.get("role") in ROLES and item.fields.get("content"):
                self._add_message(item)
            case kind:
                log.debug("an item without effect in a request: %s", ascii(kind[:40]))

    def _add_message(self, item: Item) -> None:
        role, content, where = item.fields.get("role"), item.fields.get("content"), f"{item.where}.content"
        match role:
            case "assistant":
                self._add_text(read_message_text(content, where, is_answer=True))
            case "user":
                self._add_turn("user", read_message_text(content, where, is_answer=False))
            case "system" | "developer":
                self.system_texts.append(read_message_text(content, where, is_answer=False))
            case _:
                raise InvalidRequest(
                    f"`{item.where}.role` must be one of {', '.join(ROLES)}; {show_value(role)} was given.",
                    param=f"{item.where}.role",
                )

    def _add_turn(self, role: str, text: str) -> None:
        self.close_answer()
        self.turns.append({"role": role, "content": text})

    def close_answer(self) -> None:
        """Nothing more belongs to the assistant's open turn."""
        if self._answer is not None:
            self._answer["content"] = "".join(self._texts)
            if self._thoughts:
                self._answer["reasoning_content"] = "\n\n".join(self._thoughts)
        self._answer, self._texts, self._thoughts = None, [], []

    def _add_letter(self, text: str) -> None:
        """What another agent wrote; sealed, there is none."""
        if text:
            self._add_turn("user", text)

    def _add_thought(self, text: str) -> None:
        if text:
            self._open_answer(fits=not self._texts and not self._has_calls)
            self._thoughts.append(text)

    def _add_text(self, text: str) -> None:
        # Text behind calls stays with them: the results that follow belong to the turn that called.
        self._open_answer(fits=not self._texts or self._has_calls)
        if text:
            self._texts.append(text)

    def _add_call(self, item: Item, name: str, arguments: str | dict[str, Any] | None) -> None:
        calls = self._open_answer(fits=True).setdefault("tool_calls", [])
        calls.append(build_call(_read_call_id(item), name, arguments))
        if item.kind == "mcp_call":
            self._add_result(item, item.fields.get("output") or item.fields.get("error"))

    def _add_result(self, item: Item, result: Any) -> None:
        self._add_turn("tool", read_output_text(result))
        self.turns[-1]["tool_call_id"] = _read_call_id(item)

    def _open_answer(self, *, fits: bool) -> dict[str, Any]:
        """The assistant's open turn, or a new one when there is none or what comes does not fit into it."""
        if self._answer is None or not fits:
            self.close_answer()
            self._answer = {"role": "assistant", "content": ""}
            self.turns.append(self._answer)
        return self._answer

    @property
    def _has_calls(self) -> bool:
        return self._answer is not None and "tool_calls" in self._answer


def _read_call_id(item: Item) -> str:
    call_id = item.fields.get("call_id") or item.fields.get("id")
    return call_id if isinstance(call_id, str) else ""


def _read_function_call(item: Item) -> tuple[str, str | dict[str, Any] | None]:
    arguments = item.fields.get("arguments")
    return _read_name(item), arguments if isinstance(arguments, str | dict) else None


def _read_custom_call(item: Item) -> tuple[str, dict[str, Any]]:
    return _read_name(item), {CUSTOM_INPUT: item.fields.get("input")}


def _read_name(item: Item) -> str:
    name, namespace = item.fields.get("name"), item.fields.get("namespace")
    if not isinstance(name, str):
        raise InvalidRequest(
            f"`{item.where}.name` must be a string; {show_value(name)} was given.", param=f"{item.where}.name"
        )
    return join_name(namespace if isinstance(namespace, str) else None, name)


def _call_as(name: str, field: str) -> Callable[[Item], tuple[str, dict[str, Any]]]:
    """Reads a call of a tool that is known by its kind alone."""

    def read(item: Item) -> tuple[str, dict[str, Any]]:
        arguments = item.fields.get(field)
        return name, arguments if isinstance(arguments, dict) else {field: arguments}

    return read


_CALLS: dict[str, Callable[[Item], tuple[str, str | dict[str, Any] | None]]] = {
    "function_call": _read_function_call,
    "custom_tool_call": _read_custom_call,
    "mcp_call": _read_function_call,
    "local_shell_call": _call_as("local_shell", "action"),
    "shell_call": _call_as("shell", "action"),
    "apply_patch_call": _call_as("apply_patch", "operation"),
    "tool_search_call": _call_as("tool_search", "arguments"),
}

_RESULTS = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "tool_search_output": "tools",
}
"""Kind to the field of the result."""
