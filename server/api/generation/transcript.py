"""A whole answer, put together from its parts as they come. Knows no dialect."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.api.generation.scores import Scored
from server.text.parts import CallBegun, CallDelta, Part, TextDelta, ThoughtDelta


class Piece(msgspec.Struct, frozen=True):
    """What an answer has grown by."""

    delta: Part
    scores: tuple[Scored, ...] = ()
    """Of the tokens that its text is made of, when the engine told them; only text has any."""


class Call(msgspec.Struct, frozen=True):
    """A call of a tool."""

    id: str
    name: str
    arguments: str
    """JSON text; a part of one when the answer was cut in it."""


class Transcript:
    """Collects an answer's pieces; grows by reference, so that a long answer costs no more per piece than a short."""

    def __init__(self) -> None:
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._begun: list[CallBegun] = []
        self._arguments: list[list[str]] = []

    @property
    def thought(self) -> str:
        """What was thought before the answer; empty for nothing."""
        return "".join(self._thoughts)

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(self._texts)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tools that it calls, in order."""
        pairs = zip(self._begun, self._arguments, strict=True)
        return tuple(Call(begun.id, begun.name, "".join(pieces)) for begun, pieces in pairs)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take in what comes next."""
        for piece in pieces:
            match piece.delta:
                case ThoughtDelta(text):
                    self._thoughts.append(text)
                case TextDelta(text, _):
                    self._texts.append(text)
                case CallBegun() as begun:
                    self._begun.append(begun)
                    self._arguments.append([])
                case CallDelta(index, arguments):
                    self._arguments[index].append(arguments)
                case _:
                    pass
