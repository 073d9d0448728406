"""The items that a response's output is made of, as they grow; each says its own events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from server.api.responses.custom_input import CustomInput
from server.api.responses.tools import Form

ItemStatus = Literal["in_progress", "completed", "incomplete"]

Event = tuple[str, dict[str, Any]]
"""An event's name, and what it carries besides its number and the item that it is about."""


class OutputItem(Protocol):
    """One item of an output."""

    id: str
    status: ItemStatus

    def begin(self) -> Iterator[Event]:
        """The events between the item's own and its first text."""
        ...

    def end(self) -> Iterator[Event]:
        """The events between its last text and the item's own."""
        ...

    def build(self) -> dict[str, Any]:
        """The item as it is now."""
        ...


class MessageItem:
    """The answer's text."""

    def __init__(self, item_id: str) -> None:
        self.id = item_id
        self.status: ItemStatus = "in_progress"
        self._texts: list[str] = []
        self._scores: list[msgspec.Raw] = []
        self._has_part = False

    def begin(self) -> Iterator[Event]:
        """A part without text."""
        self._has_part = True
        yield "response.content_part.added", {"content_index": 0, "part": self._build_part()}

    def grow(self, text: str, scores: Sequence[msgspec.Raw]) -> Event:
        """More text, and the log-probabilities of its tokens."""
        self._texts.append(text)
        self._scores += scores
        return "response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": scores}

    def end(self) -> Iterator[Event]:
        """The whole text, then the part."""
        part = self._build_part()
        yield (
            "response.output_text.done",
            {"content_index": 0, "text": part["text"], "logprobs": part["logprobs"]},
        )
        yield "response.content_part.done", {"content_index": 0, "part": part}

    def build(self) -> dict[str, Any]:
        """The message."""
        content = [self._build_part()] if self._has_part else []
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    def _build_part(self) -> dict[str, Any]:
        text = "".join(self._texts)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._scores}


class ThoughtItem:
    """What was thought, word for word, as the one part of a summary: the form that clients show and send back."""

    def __init__(self, item_id: str) -> None:
        self.id = item_id
        self.status: ItemStatus = "in_progress"
        self._texts: list[str] = []
        self._has_part = False

    def begin(self) -> Iterator[Event]:
        """A part without text."""
        self._has_part = True
        yield "response.reasoning_summary_part.added", {"summary_index": 0, "part": self._build_part()}

    def grow(self, text: str) -> Event:
        """More of it."""
        self._texts.append(text)
        return "response.reasoning_summary_text.delta", {"summary_index": 0, "delta": text}

    def end(self) -> Iterator[Event]:
        """The whole text, then the part."""
        part = self._build_part()
        yield "response.reasoning_summary_text.done", {"summary_index": 0, "text": part["text"]}
        yield "response.reasoning_summary_part.done", {"summary_index": 0, "part": part}

    def build(self) -> dict[str, Any]:
        """The reasoning item."""
        summary = [self._build_part()] if self._has_part else []
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": summary,
            "encrypted_content": None,
        }

    def _build_part(self) -> dict[str, Any]:
        return {"type": "summary_text", "text": "".join(self._texts)}


class CallItem:
    """A call of a function."""

    def __init__(self, item_id: str, call_id: str, form: Form) -> None:
        self.id = item_id
        self.status: ItemStatus = "in_progress"
        self._call_id, self._form = call_id, form
        self._pieces: list[str] = []

    def begin(self) -> Iterator[Event]:
        """None: arguments have no parts."""
        yield from ()

    def grow(self, arguments: str) -> Iterator[Event]:
        """More of the arguments."""
        self._pieces.append(arguments)
        yield "response.function_call_arguments.delta", {"delta": arguments}

    def end(self) -> Iterator[Event]:
        """The whole arguments."""
        yield "response.function_call_arguments.done", {"name": self._form.name, "arguments": self._arguments}

    def build(self) -> dict[str, Any]:
        """The call."""
        return {**self._build_head("function_call"), "arguments": self._arguments}

    @property
    def _arguments(self) -> str:
        return "".join(self._pieces)

    def _build_head(self, kind: str) -> dict[str, Any]:
        head = {"id": self.id, "type": kind, "status": self.status, "call_id": self._call_id, "name": self._form.name}
        return head if self._form.namespace is None else {**head, "namespace": self._form.namespace}


class CustomCallItem(CallItem):
    """A call of a tool that takes free text, which the model wrote as the one argument of a function."""

    def __init__(self, item_id: str, call_id: str, form: Form) -> None:
        super().__init__(item_id, call_id, form)
        self._input = CustomInput()

    def grow(self, arguments: str) -> Iterator[Event]:
        """More of the text."""
        text = self._input.feed(arguments)
        if text:
            yield "response.custom_tool_call_input.delta", {"delta": text}

    def end(self) -> Iterator[Event]:
        """The whole text."""
        text, rest = self._input.finish()
        if rest:
            yield "response.custom_tool_call_input.delta", {"delta": rest}
        yield "response.custom_tool_call_input.done", {"input": text}

    def build(self) -> dict[str, Any]:
        """The call."""
        return {**self._build_head("custom_tool_call"), "input": self._text}

    @property
    def _text(self) -> str:
        return self._input.finish()[0] if self.status == "completed" else self._input.shown_text
