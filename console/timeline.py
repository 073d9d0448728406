"""Notices as lines of one timeline: said in words, filtered, bounded. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from console.format import safe_text
from server.events import LogLine, NumberedNotice, Refused, StreamEnded
from server.notices import Level, describe_notice

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
"""From chatty to grave."""

KEPT_ENTRIES = 3000
"""Entries kept: as many as the server's rings hold at once (500 of each of six kinds)."""


class Entry(msgspec.Struct, frozen=True):
    """One line of the timeline; its text is safe to print."""

    sequence: int
    time_s: float
    level: Level
    source: str
    text: str

    @property
    def haystack(self) -> str:
        """What a text filter looks through."""
        return f"{self.level} {self.source} {self.text}".casefold()


def build_entry(numbered: NumberedNotice) -> Entry:
    """A notice as a line, with the id of its request before it."""
    notice = numbered.notice
    level, source, text = describe_notice(notice)
    match notice:
        case LogLine() if notice.request_id is not None and notice.request_id not in text:
            text = f"{notice.request_id}: {text}"
        case Refused() | StreamEnded():
            text = f"{notice.request_id} {text}"
        case _:
            pass
    return Entry(numbered.sequence, notice.time_s, level, safe_text(source), safe_text(text))


class Timeline:
    """The newest entries, and those of them that pass the filter. Adding costs the new entries only."""

    def __init__(self, kept: int = KEPT_ENTRIES) -> None:
        self._all: deque[Entry] = deque()
        self._kept = kept
        self._shown: list[Entry] = []
        self.level: Level = "info"
        """The least grave level shown."""
        self.needle = ""
        """Text that a shown entry contains, whatever its case."""
        self.seen_sequence = 0
        """The newest notice taken in."""

    @property
    def shown(self) -> Sequence[Entry]:
        """Entries that pass the filter, oldest first; a view, not a copy."""
        return self._shown

    @property
    def total(self) -> int:
        """Entries kept, filtered or not."""
        return len(self._all)

    def add(self, notices: Iterable[NumberedNotice]) -> int:
        """Take in newer notices; the result is how many shown entries fell out at the old end."""
        dropped = 0
        for numbered in notices:
            entry = build_entry(numbered)
            self.seen_sequence = max(self.seen_sequence, entry.sequence)
            self._all.append(entry)
            if self._passes(entry):
                self._shown.append(entry)
            if len(self._all) > self._kept:
                oldest = self._all.popleft()
                dropped += dropped < len(self._shown) and self._shown[dropped] is oldest
        del self._shown[:dropped]
        return dropped

    def set_filter(self, *, level: Level | None = None, needle: str | None = None) -> None:
        """Choose what is shown; what is left out of the arguments stays as it is."""
        self.level = self.level if level is None else level
        self.needle = self.needle if needle is None else needle.casefold()
        self._shown = [entry for entry in self._all if self._passes(entry)]

    def _passes(self, entry: Entry) -> bool:
        if LEVELS.index(entry.level) < LEVELS.index(self.level):
            return False
        return not self.needle or self.needle in entry.haystack
