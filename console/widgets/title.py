"""The first line of every screen: is it serving, where, what, since when, and how full it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, cast

from textual.app import App

from console.format import base_url, cut, cut_middle, format_duration, format_seconds, safe_text
from console.widgets.lines import Line, Lines, Span, line_width, split_ends
from server.snapshot import Snapshot

STALE_AFTER_S = 1.0
"""A busy server whose snapshot is older than this is marked: the numbers on the screen are no longer now."""

STATE_WORDS: dict[str, tuple[str, str, str]] = {
    "starting": ("◌", "STARTING", "state-waiting"),
    "serving": ("●", "SERVING", "state-ok"),
    "stalled": ("▲", "STALLED", "state-warning"),
    "draining": ("◐", "DRAINING", "state-waiting"),
    "stopped": ("■", "STOPPED", "state-finished"),
    "engine_dead": ("✕", "ENGINE DEAD", "state-error"),
}
"""Symbol, word and colour of each state of the server."""


OPEN_SIGN = "▲ NO KEY"
"""Other machines are answered without any key, as the operator allowed."""


class _Clocked(Protocol):
    clock: Callable[[], float]


def read_clock(app: App[object]) -> float:
    """The application's monotonic clock, which tests replace."""
    return cast("_Clocked", app).clock() if hasattr(app, "clock") else time.monotonic()


def stale_age_s(snapshot: Snapshot, now_s: float) -> float | None:
    """How old a snapshot is when that should worry the operator, else None."""
    age_s = now_s - snapshot.monotonic_s
    return age_s if snapshot.engine.busy and age_s > STALE_AFTER_S else None


def title_line(snapshot: Snapshot, place: str, now_s: float, width: int) -> Line:
    """The title as one line of `width` cells; what matters least is left out first."""
    symbol, word, role = STATE_WORDS[snapshot.state]
    gap = " " if width < 100 else "  "
    head: list[Span] = [(" homebase ", "title-mark bold"), (f"{gap[1:]}{symbol} {word}", f"{role} bold")]
    if (age_s := stale_age_s(snapshot, now_s)) is not None:
        head.append((f"{gap}▲ STALE {format_seconds(age_s)}", "state-warning bold"))
    if snapshot.answers_strangers:
        head.append((f"{gap}{OPEN_SIGN}", "state-error bold"))
    right = _slots(snapshot, width)
    left: Line = tuple(head)
    for text, kind in _facts(snapshot, place, width):
        span = (f"{gap}{text}", kind)
        if line_width((*left, span)) + line_width(right) + 1 <= width:
            left = (*left, span)
    return split_ends(left, right, width)


def _slots(snapshot: Snapshot, width: int) -> Line:
    admission = snapshot.admission
    used = "bold state-ok" if admission.in_flight else "text-muted"
    return (
        ("in flight " if width >= 100 else "", "text-muted"),
        (f"{admission.in_flight}", used),
        (" of ", "text-muted"),
        (f"{admission.max_in_flight} ", "bold"),
    )


def _facts(snapshot: Snapshot, place: str, width: int) -> list[Span]:
    address = base_url(snapshot.host, snapshot.port).removeprefix("http://").removesuffix("/v1")
    model: list[Span] = [
        (cut_middle(safe_text(snapshot.model.id), 16 if width < 100 else 28), "accent-text bold"),
        (mtp_word(snapshot.model.mtp), "text-muted"),
    ]
    if snapshot.model.state == "none":
        model = [("no local model", "text-muted")]
    facts: list[Span] = [
        (address, "text-strong"),
        *model,
        (f"up {format_duration(snapshot.uptime_s)}", "text-muted"),
    ]
    if snapshot.admission.refused_total:
        facts.append((f"{snapshot.admission.refused_total:,} refused", "state-warning"))
    if place not in {"", "homebase", "streams"}:
        facts.insert(0, (safe_text(place), "bold"))
    return facts


def mtp_word(mtp: str) -> str:
    """Drafting in two words: what stands before the reason, e.g. `MTP off`; a dash while nothing is known of it."""
    first = safe_text(mtp).replace("(", ":").replace(";", ":").replace(",", ":").partition(":")[0].strip()
    return f"MTP {cut(first.removeprefix('MTP').strip() or '-', 12)}"


class TitleLine(Lines):
    """The title line; `source_name` names the place on screens other than the home screen."""

    DEFAULT_CSS = """
    TitleLine { height: 1; dock: top; background: $title-background; color: $foreground; }
    """

    def __init__(self, source_name: str = "homebase") -> None:
        super().__init__()
        self._place = source_name
        self._shown: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Draw the snapshot at the width of now."""
        self._shown = snapshot
        self.show_lines((title_line(snapshot, self._place, read_clock(self.app), self.size.width),))

    def on_resize(self) -> None:
        """Fit the new width."""
        if self._shown is not None:
            self.show(self._shown)
