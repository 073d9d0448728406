"""Brings a conversation from the wire into the one form that every chat template takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.api.chat.wire import ContentPart, Message
from server.api.generation.turns import build_call, put_system_first
from server.errors import InvalidRequest

SYSTEM_ROLES = frozenset({"system", "developer"})


def normalise_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation for a chat template. Raises InvalidRequest for what no template can take.

    All system and developer messages, wherever they stand, become one system message at the front, in their order:
    templates take one, and only there. Text parts are joined. Arguments of earlier tool calls become objects.
    """
    system_texts: list[str] = []
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role in SYSTEM_ROLES:
            system_texts.append(_read_text(message, where))
        else:
            turns.append(_build_turn(message, where))
    return put_system_first(system_texts, turns)


def _build_turn(message: Message, where: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role}
    if message.role == "assistant" and message.tool_calls:
        turn["content"] = _read_text(message, where) if message.content is not None else ""
        calls = message.tool_calls
        turn["tool_calls"] = [build_call(call.id or "", call.function.name, call.function.arguments) for call in calls]
    else:
        turn["content"] = _read_text(message, where)
    if message.role == "tool":
        turn["tool_call_id"] = _read_call_id(message, where)
    if message.role == "assistant" and message.reasoning_content:
        turn["reasoning_content"] = message.reasoning_content
    if message.name:
        turn["name"] = message.name
    return turn


def _read_text(message: Message, where: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        raise InvalidRequest(
            f"`{where}.content` is missing or null; only an assistant message with tool_calls may go without.",
            param=f"{where}.content",
        )
    return "".join(_read_part(part, f"{where}.content[{index}]") for index, part in enumerate(message.content))


def _read_part(part: ContentPart, where: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in ("text", "refusal"):
        raise InvalidRequest(
            f"`{where}` is of type {part.type[:40]!r}; this server takes text only, as "
            '{"type": "text", "text": "..."}.',
            param=f"{where}.type",
        )
    if text is None:
        raise InvalidRequest(f"`{where}.{part.type}` is missing; it must be a string.", param=f"{where}.{part.type}")
    return text


def _read_call_id(message: Message, where: str) -> str:
    if not message.tool_call_id:
        raise InvalidRequest(
            f"`{where}.tool_call_id` is missing; a tool message must say which call it answers.",
            param=f"{where}.tool_call_id",
        )
    return message.tool_call_id
