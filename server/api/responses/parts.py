"""The text of an item's content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from server.api.decoding import show_value
from server.errors import InvalidRequest

LEFT_OUT = "[{kind} left out: this server takes text only]"
"""What stands in a tool's result for a part that is no text."""


def read_message_text(content: Any, where: str, *, is_answer: bool) -> str:
    """A message's text. Raises InvalidRequest for what is no text, except in an answer, where it is left out.

    An answer is history: the client sends it again with every turn, and could not go on.
    """
    match content:
        case str():
            return content
        case list():
            parts = ((part, f"{where}[{index}]") for index, part in enumerate(content))
            return "".join(_read_part(part, place, is_answer=is_answer) for part, place in parts)
        case None if is_answer:
            return ""
        case _:
            raise InvalidRequest(
                f"`{where}` must be a string or a list of text parts; {show_value(content)} was given.", param=where
            )


def read_output_text(output: Any) -> str:
    """The text of a tool's result, whatever its shape: it is history, and never fails a turn."""
    match output:
        case str():
            return output
        case None:
            return ""
        case list() if all(isinstance(part, dict) for part in output):
            return "".join(_show_part(part) for part in output)
        case _:
            return _encode(output)


def join_texts(parts: Any) -> str:
    """The texts of a list of parts, a blank line between them."""
    found = [_find_text(part) for part in parts] if isinstance(parts, list) else []
    return "\n\n".join(text for text in found if text)


def _read_part(part: Any, where: str, *, is_answer: bool) -> str:
    text = _find_text(part)
    if text is not None or is_answer:
        return text or ""
    kind = part.get("type") if isinstance(part, dict) else part
    raise InvalidRequest(
        f"`{where}` is of type {show_value(kind)}; this server takes text only, as "
        '{"type": "input_text", "text": "..."}.',
        param=f"{where}.type",
    )


def _show_part(part: Mapping[str, Any]) -> str:
    text = _find_text(part)
    if text is not None:
        return text
    match part.get("type"):
        case "input_image" | "input_file" | "input_audio" as kind:
            return LEFT_OUT.format(kind=kind.removeprefix("input_"))
        case _:
            return _encode(part)


def _find_text(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
    return text if isinstance(text, str) else None


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
