"""Notices as lines of one timeline: said in words, filtered, bounded. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from console.format import count_noun, format_seconds, safe_text
from server.events import (
    AnyNotice,
    LogLine,
    ModelStateChanged,
    NumberedNotice,
    PolicyChanged,
    PolicyProblem,
    Refused,
    StreamEnded,
)

Level = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
"""From chatty to grave."""

KEPT_ENTRIES = 3000
"""Entries kept: as many as the server's rings hold at once (500 of each of six kinds)."""

_ORIGINS = {"console": "saved in a console", "file": "file edited", "undo": "save undone"}


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


def describe_notice(numbered: NumberedNotice) -> Entry:
    """A notice in words."""
    notice = numbered.notice
    level, source, text = _describe(notice)
    return Entry(numbered.sequence, notice.time_s, level, safe_text(source), safe_text(text))


def _describe(notice: AnyNotice) -> tuple[Level, str, str]:
    match notice:
        case LogLine():
            known = notice.request_id is None or notice.request_id in notice.message
            return notice.level, notice.source, notice.message if known else f"{notice.request_id}: {notice.message}"
        case Refused():
            return "warning", "refused", _describe_refusal(notice)
        case StreamEnded():
            return ("error" if notice.outcome == "failed" else "info"), "stream", _describe_end(notice)
        case PolicyChanged():
            changes = ", ".join(f"{key} {old} → {new}" for key, old, new in notice.changes)
            return "info", "policy", f"{_ORIGINS[notice.origin]}: {changes or 'no value changed'}"
        case PolicyProblem(message=""):
            return "info", "policy", "the file is valid again"
        case PolicyProblem():
            return "error", "policy", f"{notice.message} The policy before it stays in force."
        case ModelStateChanged():
            level: Level = "error" if notice.state == "failed" else "info"
            return level, "model", f"{notice.state}: {notice.detail}" if notice.detail else notice.state


def _describe_refusal(refused: Refused) -> str:
    who = f"{refused.client} ({refused.lane})" if refused.lane != "unknown" else refused.client
    again = f", retry after {refused.retry_after_s} s" if refused.retry_after_s is not None else ""
    return f"{refused.request_id} {who}: {refused.message} Sent {refused.status} {refused.code}{again}."


def _describe_end(ended: StreamEnded) -> str:
    detail = f" ({ended.detail})" if ended.detail else ""
    ttft = f", TTFT {format_seconds(ended.ttft_s)}" if ended.ttft_s is not None else ""
    return (
        f"{ended.request_id} {ended.client}: {ended.outcome}{detail} after {format_seconds(ended.age_s)}, "
        f"prompt {ended.prompt_tokens:,}, out {count_noun(ended.completion_tokens, 'token')}{ttft}"
    )


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
            entry = describe_notice(numbered)
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
