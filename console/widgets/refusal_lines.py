"""Refusals as lines: time, code, who, the limit and its use, what was sent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from console.format import NOT_YET, format_bytes, format_clock, format_count, pad, safe_text
from console.widgets.lines import Line, join_whole, line_width, split_ends
from server.events import Refused
from server.snapshot import Snapshot


def refusal_lines(snapshot: Snapshot, width: int, rows: int) -> list[Line]:
    """A head with the count and codes, then the newest refusals; `rows` lines in all after the head."""
    admission = snapshot.admission
    head = _head(snapshot, width)
    shown = admission.recent_refusals[:rows]
    columns = plan_columns(shown, width)
    lines = [refusal_line(refused, columns, width) for refused in shown]
    if not lines:
        started = format_clock(snapshot.time_s - snapshot.uptime_s)
        lines = [((f"  Nothing refused since {started}.", "text-muted"),)]
    blank: Line = (("", ""),)
    return [head, *lines, *[blank] * (rows - len(lines))]


def _head(snapshot: Snapshot, width: int) -> Line:
    admission = snapshot.admission
    codes = sorted(admission.refused_by_code.items(), key=lambda item: -item[1])
    words: list[Line] = [
        ((f"{'  ' if place else ''} {safe_text(code)} {count:,}", "text-muted"),)
        for place, (code, count) in enumerate(codes)
    ]
    total = admission.refused_total
    left: Line = (
        ("─ ", "band-border"),
        ("refused ", "text-muted"),
        (f"{total:,} ", "state-warning bold" if total else "bold"),
    )
    right: Line = (*join_whole(words, width // 2), (" ─", "text-muted")) if words and width >= 100 else ()
    return split_ends(left, right, width, ("─", "band-border"))


class Columns(msgspec.Struct, frozen=True):
    """What of a refusal has room in a row; the same for all rows that are shown."""

    client: int
    """Cells for the client's name, which gives way to numbers; 0 leaves it out."""
    lane: bool
    asked: bool
    retry: bool
    """True when there is room for when the client may come back."""


def plan_columns(shown: Sequence[Refused], width: int) -> Columns:
    """The columns for these refusals."""
    most = 12 if width < 80 else 16 if width < 100 else 24
    lane, asked, retry = width >= 100, width >= 120, width >= 80
    left = min((_measure_left(refused, Columns(0, lane, asked, retry), width) for refused in shown), default=most + 1)
    if retry and left <= LEAST_CLIENT:
        retry = False
        left = min(_measure_left(refused, Columns(0, lane, asked, retry), width) for refused in shown)
    return Columns(min(most, left - 1) if left > LEAST_CLIENT else 0, lane, asked, retry)


LEAST_CLIENT = 6
"""Cells; fewer of a name tell nothing."""


def _measure_left(refused: Refused, columns: Columns, width: int) -> int:
    head, tail = _ends(refused, columns)
    return width - line_width(head) - line_width(tail)


def refusal_line(refused: Refused, columns: Columns, width: int) -> Line:
    """One refusal in one row."""
    head, tail = _ends(refused, columns)
    return split_ends(head, tail, width)


def _ends(refused: Refused, columns: Columns) -> tuple[Line, Line]:
    asked = f"prompt {format_count(refused.prompt_tokens)}"
    asked += f" + {format_count(refused.max_tokens)}" if refused.max_tokens is not None else ""
    head: Line = (
        (f"  {format_clock(refused.time_s)}  ", "text-muted"),
        (f"{pad(safe_text(refused.code), 19)} ", "state-warning bold"),
        (f"{pad(safe_text(refused.client), columns.client)} " if columns.client else "", "accent-text"),
        (f"{pad(refused.lane, 9)} " if columns.lane else "", "text-muted"),
        (f"{use_words(refused)}  ", ""),
        (asked if columns.asked else "", "text-muted"),
    )
    sent = sent_words(refused) if columns.retry else f"{refused.status}"
    return head, ((f"  {sent} ", "text-muted"),)


def use_words(refused: Refused) -> str:
    """The limit that said no and its use: `2 of 2`, bytes for memory, rates for the floor, a dash for no limit."""
    if refused.limit is None or refused.used is None:
        return NOT_YET
    if refused.code in ("memory_budget_full", "memory_too_small"):
        return f"{format_bytes(int(refused.used))} of {format_bytes(int(refused.limit))}"
    if refused.code == "decode_floor":
        return f"{refused.used:.1f} of {refused.limit:g} tok/s"
    return f"{format_count(int(refused.used))} of {format_count(int(refused.limit))}"


def sent_words(refused: Refused) -> str:
    """What the client was told: `sent 429, retry in 12 s`."""
    retry = f", retry in {refused.retry_after_s} s" if refused.retry_after_s is not None else ""
    return f"sent {refused.status}{retry}"
