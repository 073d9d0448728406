"""What an answer is made of: the typed parts that generated text is read as. Pure data."""

from __future__ import annotations

import msgspec


class ThoughtDelta(msgspec.Struct, frozen=True):
    """A piece of what the model thinks before it answers."""

    text: str


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the answer itself."""

    text: str
    start: int
    """Where its first character stands in everything that was generated, markup included, in characters. Within one
    piece generated and shown characters are the same, one by one."""


class CallBegun(msgspec.Struct, frozen=True):
    """The model calls a function; its arguments follow."""

    index: int
    """Which call of the answer, from 0."""
    id: str
    name: str
    """As the model wrote it: a function that was never offered is called too, and the client answers that."""


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of a call's arguments: together they are one JSON object, once the call has ended."""

    index: int
    arguments: str


class CallEnded(msgspec.Struct, frozen=True):
    """A call is complete. One that was cut short never is."""

    index: int


Part = ThoughtDelta | TextDelta | CallBegun | CallDelta | CallEnded
