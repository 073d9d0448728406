"""A conversation in the one form that every chat template takes, whichever dialect it came in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

SYSTEM_JOINT = "\n\n"
"""Between the texts of several system messages."""

RAW_ARGUMENTS = "arguments"
"""The key under which a call's arguments are kept when they are no JSON object."""


def put_system_first(system_texts: Sequence[str], turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns after one system message with all texts, in their order: templates take one, and only there."""
    return [*_build_system(system_texts), *turns]


def first_text(turns: Sequence[Mapping[str, Any]], role: str) -> str:
    """The text of the first turn with a role, empty when there is none."""
    return next((str(turn["content"] or "") for turn in turns if turn["role"] == role), "")


def list_opening_texts(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the user said before the first answer."""
    texts: list[str] = []
    for turn in turns:
        if turn["role"] == "assistant":
            break
        if turn["role"] == "user":
            texts.append(str(turn["content"] or ""))
    return texts


def build_call(call_id: str, name: str, arguments: str | dict[str, Any] | None) -> dict[str, Any]:
    """An earlier call of a tool."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": read_arguments(arguments)}}


def read_arguments(arguments: str | dict[str, Any] | None) -> dict[str, Any]:
    """A call's arguments as an object, which templates walk through.

    A model can have written anything. What is no JSON object is kept word for word under one key: refusing it would
    end a conversation for good, because the client sends it again with every turn.
    """
    if isinstance(arguments, dict):
        return arguments
    if not arguments or not arguments.strip():
        return {}
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {RAW_ARGUMENTS: arguments}
    return decoded if isinstance(decoded, dict) else {RAW_ARGUMENTS: arguments}


def _build_system(texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    joined = SYSTEM_JOINT.join(text for text in texts if text)
    if joined:
        yield {"role": "system", "content": joined}
