"""Generated text on its way to a reader: it comes in pieces of any size, and is taken in parts that have a meaning.

Whatever is taken does not depend on how the text was cut, and the work is linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache
from typing import Literal

_BLANK = re.compile(r"\s*")
_NAME = re.compile(r"[^\s<>]*")


class Tape:
    """Text that arrives in pieces and is taken from the front. What may become a marker is not given out."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._start = 0
        self._record: list[str] | None = None
        self.is_closed = False
        """True when no more text comes: then nothing can still become a marker."""
        self.is_cut = False
        """True when it was closed before the model had ended its answer."""

    @property
    def offset(self) -> int:
        """How many characters were taken so far."""
        return self._start + self._at

    def add(self, piece: str) -> None:
        """Put a piece at the end."""
        self._start += self._at
        self._text, self._at = self._text[self._at :] + piece, 0

    def close(self, *, cut: bool) -> None:
        """No more text comes."""
        self.is_closed, self.is_cut = True, cut

    def take_before(self, *markers: str) -> tuple[str, str | None]:
        """The text in front of the first marker, and that marker, which stays.

        While there is none: all that cannot be the beginning of one, and None.
        """
        found = _build_pattern(markers).search(self._text, self._at) if markers else None
        if found is not None:
            return self._take(found.start()), found.group()
        return self._take(len(self._text) - self._count_held(markers)), None

    def take_blank(self) -> str:
        """The white space at the front, as far as it has come."""
        return self._take_match(_BLANK)

    def take_name(self) -> str:
        """What may stand in the name of a function or parameter, as far as it has come."""
        return self._take_match(_NAME)

    def take(self, text: str) -> None:
        """Take `text`, which must stand at the front."""
        assert self.begins_with(text)
        self._take(self._at + len(text))

    def begins_with(self, *markers: str) -> bool:
        """True when one of these stands at the front."""
        return self._text.startswith(markers, self._at)

    def may_begin_with(self, *markers: str) -> bool:
        """True when what there is of the front could go on as one of these; so for no text at all."""
        front = self._text[self._at : self._at + max(map(len, markers))]
        return any(marker.startswith(front) or front.startswith(marker) for marker in markers)

    @property
    def is_empty(self) -> bool:
        """True when everything was taken."""
        return self._at == len(self._text)

    def record(self) -> None:
        """From here on remember what is taken."""
        self._record = []

    def end_record(self) -> str:
        """What was taken since `record`."""
        recorded, self._record = "".join(self._record or ()), None
        return recorded

    def _take_match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        return self._take(found.end()) if found else ""

    def _take(self, end: int) -> str:
        taken, self._at = self._text[self._at : end], end
        if self._record is not None:
            self._record.append(taken)
        return taken

    def _count_held(self, markers: tuple[str, ...]) -> int:
        """Length of the longest end of the text with which some marker begins."""
        room = len(self._text) - self._at
        if self.is_closed or not _may_hold(self._text, room, markers):
            return 0
        longest = 0
        for marker in markers:
            for size in range(min(len(marker) - 1, room), longest, -1):
                if self._text.endswith(marker[:size]):
                    longest = size
                    break
        return longest


Wait = Generator[None, None, str]
"""Reading that yields None whenever it wants more text, and results in what it read."""


def collect_before(tape: Tape, *markers: str) -> Wait:
    """All text in front of the first of the markers, which stays; or all that there is, when the tape ends first."""
    pieces: list[str] = []
    while True:
        text, marker = tape.take_before(*markers)
        pieces.append(text)
        if marker is not None or tape.is_closed:
            return "".join(pieces)
        yield None


def collect_run(tape: Tape, kind: Literal["blank", "name"]) -> Wait:
    """All white space, or the whole name, at the front, up to the first character that is none of it."""
    pieces: list[str] = []
    while True:
        pieces.append(tape.take_blank() if kind == "blank" else tape.take_name())
        if not tape.is_empty or tape.is_closed:
            return "".join(pieces)
        yield None


def wait_for_front(tape: Tape, *markers: str) -> Generator[None, None, bool]:
    """True when one of the markers stands at the front, as soon as that is certain.

    At the end of the text the beginning of one, or nothing at all, counts as one.
    """
    while not tape.begins_with(*markers):
        if not tape.may_begin_with(*markers):
            return False
        if tape.is_closed:
            return True
        yield None
    return True


def _may_hold(text: str, room: int, markers: tuple[str, ...]) -> bool:
    """False when the end of the text, `room` characters at most, has not even the first character of a marker."""
    starts, longest = _measure(markers)
    end = text[-min(room, longest) :] if room and longest else ""
    return any(start in end for start in starts)


@cache
def _measure(markers: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """The characters that markers begin with, and the length of the longest beginning that is not a whole one."""
    return tuple({marker[0] for marker in markers}), max((len(marker) - 1 for marker in markers), default=0)


@cache
def _build_pattern(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))
