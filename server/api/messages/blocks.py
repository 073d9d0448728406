"""An answer's parts as content blocks, one after another and one open at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from server.api.generation.turns import read_arguments
from server.api.messages.thoughts import build_signature
from server.text.parts import CallBegun, CallDelta, CallEnded, Part, TextDelta, ThoughtDelta

Event = dict[str, Any]
"""One event of the dialect's stream, ready for JSON."""


class OpenBlock:
    """A block that grows."""

    def __init__(self, index: int, kind: Literal["thinking", "text", "tool_use"], call: CallBegun | None) -> None:
        self.index, self.kind = index, kind
        self._call = call
        self._parts: list[str] = []

    def grow(self, text: str) -> None:
        """More of its text, or of a call's arguments."""
        self._parts.append(text)

    @property
    def text(self) -> str:
        """All that it has grown by."""
        return "".join(self._parts)

    def build(self, text: str, signature: str = "") -> dict[str, Any]:
        """The block with a text. A call's arguments that are no JSON object, cut ones, are kept word for word."""
        if self._call is not None:
            return {"type": "tool_use", "id": self._call.id, "name": self._call.name, "input": read_arguments(text)}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": text, "signature": signature}
        return {"type": "text", "text": text}


class Blocks:
    """Folds parts into blocks, and tells each step as the dialect's stream does.

    White space before a text is held back until the text comes: a block of nothing else is one that Anthropic refuses
    in a history, and some clients with it.
    """

    def __init__(self, *, hides_thoughts: bool = False) -> None:
        self._hides_thoughts = hides_thoughts
        self._blocks: list[OpenBlock] = []
        self._open: OpenBlock | None = None
        self._blank = ""

    def add(self, delta: Part) -> Iterator[Event]:
        """The events for what the answer has grown by."""
        match delta:
            case ThoughtDelta(text):
                yield from self._enter("thinking")
                yield from self._grow("thinking_delta", "thinking", text, is_shown=not self._hides_thoughts)
            case TextDelta(text, _):
                yield from self._add_text(text)
            case CallBegun():
                yield from self._enter("tool_use", delta)
            case CallDelta(_, arguments):
                yield from self._grow("input_json_delta", "partial_json", arguments)
            case CallEnded():
                yield from self.close()

    def close(self) -> Iterator[Event]:
        """The events that end the block that is open, if one is."""
        block, self._open, self._blank = self._open, None, ""
        if block is None:
            return
        if block.kind == "thinking":
            signature = {"type": "signature_delta", "signature": self._sign(block)}
            yield {"type": "content_block_delta", "index": block.index, "delta": signature}
        yield {"type": "content_block_stop", "index": block.index}

    def build_content(self) -> list[dict[str, Any]]:
        """All blocks as they are now."""
        return [self._build_whole(block) for block in self._blocks]

    def _add_text(self, text: str) -> Iterator[Event]:
        if self._open is None or self._open.kind != "text":
            self._blank += text
            if self._blank.isspace():
                return
            text = self._blank
        yield from self._enter("text")
        yield from self._grow("text_delta", "text", text)

    def _enter(self, kind: Literal["thinking", "text", "tool_use"], call: CallBegun | None = None) -> Iterator[Event]:
        """Open a block, unless one of this kind is open that goes on."""
        if self._open is not None and self._open.kind == kind and call is None:
            return
        yield from self.close()
        self._open = OpenBlock(len(self._blocks), kind, call)
        self._blocks.append(self._open)
        yield {"type": "content_block_start", "index": self._open.index, "content_block": self._open.build("")}

    def _grow(self, kind: str, name: str, text: str, *, is_shown: bool = True) -> Iterator[Event]:
        assert self._open is not None, "only an open block grows"
        self._open.grow(text)
        if is_shown:
            yield {"type": "content_block_delta", "index": self._open.index, "delta": {"type": kind, name: text}}

    def _build_whole(self, block: OpenBlock) -> dict[str, Any]:
        is_hidden = block.kind == "thinking" and self._hides_thoughts
        return block.build("" if is_hidden else block.text, self._sign(block))

    def _sign(self, block: OpenBlock) -> str:
        return build_signature(block.text if self._hides_thoughts else "")
