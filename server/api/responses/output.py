"""A response's output as it grows out of an answer's pieces: items one after another, and the events about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from server.api.generation.likely import encode_score
from server.api.generation.transcript import Piece
from server.api.responses.output_items import (
    CallItem,
    CustomCallItem,
    Event,
    ItemStatus,
    MessageItem,
    OutputItem,
    ThoughtItem,
)
from server.api.responses.tools import Toolbox
from server.text.parts import CallBegun, CallDelta, CallEnded, TextDelta, ThoughtDelta


class Output:
    """Collects items; of them the last one is open."""

    def __init__(self, key: str, toolbox: Toolbox, spell: Callable[[int], bytes] | None = None) -> None:
        self._key, self._toolbox, self._spell = key, toolbox, spell
        self._items: list[OutputItem] = []
        self._calls: list[CallItem] = []

    def add(self, piece: Piece) -> Iterator[Event]:
        """What a piece adds."""
        match piece.delta:
            case ThoughtDelta(text):
                thought = self._last if isinstance(self._last, ThoughtItem) else ThoughtItem(self._name("rs"))
                yield from self._continue(thought)
                yield self._place(thought, thought.grow(text))
            case TextDelta(text, _):
                message = self._last if isinstance(self._last, MessageItem) else MessageItem(self._name("msg"))
                yield from self._continue(message)
                yield self._place(message, message.grow(text, self._encode_scores(piece)))
            case CallBegun(_, call_id, name):
                call = self._build_call(call_id, name)
                yield from self._continue(call)
                self._calls.append(call)
            case CallDelta(index, arguments):
                call = self._calls[index]
                yield from (self._place(call, event) for event in call.grow(arguments))
            case CallEnded(index):
                yield from self._end(self._calls[index], "completed")

    def close(self, status: ItemStatus) -> Iterator[Event]:
        """Nothing follows: end the last item.

        A call that was cut off is not announced as done, and stays incomplete: clients start what is done.
        """
        if not self._items:
            yield from self._continue(MessageItem(self._name("msg")))
        if isinstance(self._last, CallItem):
            self.cut()
        elif self._last is not None:
            yield from self._end(self._last, status)

    def cut(self) -> None:
        """Nothing follows, and what is open stays as it is."""
        for item in self._items:
            if item.status == "in_progress":
                item.status = "incomplete"

    def build(self) -> list[dict[str, Any]]:
        """The items as they are now."""
        return [item.build() for item in self._items]

    @property
    def _last(self) -> OutputItem | None:
        return self._items[-1] if self._items else None

    def _name(self, kind: str) -> str:
        """The id of the next item: its kind, the request's, its place."""
        return f"{kind}_{self._key}_{len(self._items)}"

    def _build_call(self, call_id: str, name: str) -> CallItem:
        form = self._toolbox.find_form(name)
        if form.is_custom:
            return CustomCallItem(self._name("ctc"), call_id, form)
        return CallItem(self._name("fc"), call_id, form)

    def _continue(self, item: OutputItem) -> Iterator[Event]:
        """Make an item the last one; nothing when it is."""
        if item is self._last:
            return
        if self._last is not None and not isinstance(self._last, CallItem):
            yield from self._end(self._last, "completed")
        self._items.append(item)
        yield "response.output_item.added", {"output_index": len(self._items) - 1, "item": item.build()}
        yield from (self._place(item, event) for event in item.begin())

    def _end(self, item: OutputItem, status: ItemStatus) -> Iterator[Event]:
        if item.status != "in_progress":
            return
        yield from (self._place(item, event) for event in item.end())
        item.status = status
        yield "response.output_item.done", {"output_index": self._items.index(item), "item": item.build()}

    def _place(self, item: OutputItem, event: Event) -> Event:
        name, fields = event
        return name, {"item_id": item.id, "output_index": self._items.index(item), **fields}

    def _encode_scores(self, piece: Piece) -> list[msgspec.Raw]:
        return [] if self._spell is None else [encode_score(scored, self._spell) for scored in piece.scores]
