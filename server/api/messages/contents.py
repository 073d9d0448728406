"""The text of content blocks, for all kinds of block that have any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from server.api.messages.wire import Block
from server.errors import InvalidRequest

JOINT = "\n\n"
"""Between blocks of one message, which the dialect keeps apart and a chat template does not."""


def read_text(block: Block, where: str) -> str | None:
    """A block's text, None for a block that is no text. Raises InvalidRequest for a text block without any."""
    match block.type:
        case "text":
            if block.text is None:
                raise InvalidRequest(f"`{where}.text` is missing; it must be a string.", param=f"{where}.text")
            return block.text
        case "document":
            return _read_document(block)
        case "search_result":
            return _join_lines((block.title, block.source, _read_inner(block.content)))
        case "compaction":
            # What Anthropic's servers put in the place of the messages before it.
            return block.content if isinstance(block.content, str) else ""
        case _:
            return None


def read_result(content: str | list[Block] | dict[str, Any] | None, where: str) -> str:
    """The text of a tool's result.

    A picture in it is left out, and the model is told: an agent that looked at one would otherwise be refused with
    every later turn, because the result stays in the conversation.
    """
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            parts = [_read_result_block(block, f"{where}[{index}]") for index, block in enumerate(content)]
            return JOINT.join(part for part in parts if part)
        case _:
            raise InvalidRequest(
                f"`{where}` must be a string or a list of content blocks; an object was given.", param=where
            )


def build_text_only(block: Block, where: str) -> InvalidRequest:
    """The error for a block that no text can stand for."""
    return InvalidRequest(
        f'`{where}` is of type {block.type[:40]!r}; this server takes text only, as {{"type": "text", "text": "..."}}.',
        param=f"{where}.type",
    )


def _read_result_block(block: Block, where: str) -> str:
    if block.type == "tool_reference":
        return f"Tool found: {block.tool_name or 'unnamed'}"
    text = read_text(block, where)
    return f"[{block.type[:40]!a} is left out: this model reads text only.]" if text is None else text


def _read_document(block: Block) -> str | None:
    match block.source:
        case {"type": "text", "data": str(text)} | {"type": "content", "content": str(text)}:
            return _join_lines((block.title, text))
        case {"type": "content", "content": list(parts)}:
            texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
            return None if None in texts else _join_lines((block.title, *texts))
        case _:
            return None


def _read_inner(content: Any) -> str:
    return _join_lines(part.text for part in content) if isinstance(content, list) else ""


def _join_lines(texts: Iterable[Any]) -> str:
    return "\n".join(text for text in texts if isinstance(text, str) and text)
