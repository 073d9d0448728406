"""The parts that an answer is made of, as they grow. Pure."""

from __future__ import annotations

import msgspec


class ThoughtDelta(msgspec.Struct, frozen=True):
    """More of what the model thinks before it answers."""

    text: str


class TextDelta(msgspec.Struct, frozen=True):
    """More of the answer itself."""

    text: str
    start: int
    """Where its first character is in all that was generated; from there both run side by side."""


class CallBegun(msgspec.Struct, frozen=True):
    """A call of a tool begins."""

    index: int
    """Among the answer's calls, from 0."""
    id: str
    name: str


class CallDelta(msgspec.Struct, frozen=True):
    """More of a call's arguments."""

    index: int
    arguments: str
    """A piece of JSON text; all of a call's pieces make one object."""


class CallEnded(msgspec.Struct, frozen=True):
    """A call is whole."""

    index: int


Delta = ThoughtDelta | TextDelta | CallBegun | CallDelta | CallEnded


class PlainReader:
    """All that is generated is the answer's text."""

    def __init__(self) -> None:
        self._chars = 0
        self.is_thinking = False
        """Never."""

    def feed(self, text: str) -> list[Delta]:
        """What a piece of text adds."""
        start, self._chars = self._chars, self._chars + len(text)
        return [TextDelta(text, start)] if text else []

    def finish(self) -> list[Delta]:
        """Nothing was held back."""
        return []
