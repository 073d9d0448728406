"""Refusals as lines: time, code, who, the limit and its use, what was sent."""

from __future__ import annotations

from console.format import cut, format_bytes, format_clock, format_count, pad, safe_text
from console.widgets.lines import Line, split_ends
from server.events import Refused
from server.snapshot import Snapshot


def refusal_lines(snapshot: Snapshot, width: int, rows: int) -> list[Line]:
    """A head with the count and codes, then the newest refusals; `rows` lines in all after the head."""
    admission = snapshot.admission
    head = _head(snapshot, width)
    shown = admission.recent_refusals[:rows]
    lines = [refusal_line(refused, width) for refused in shown]
    if not lines:
        started = format_clock(snapshot.time_s - snapshot.uptime_s)
        lines = [((f"  Nothing refused since {started}.", "text-muted"),)]
    blank: Line = (("", ""),)
    return [head, *lines, *[blank] * (rows - len(lines))]


def _head(snapshot: Snapshot, width: int) -> Line:
    admission = snapshot.admission
    codes = sorted(admission.refused_by_code.items(), key=lambda item: -item[1])
    words = "   ".join(f"{safe_text(code)} {count:,}" for code, count in codes)
    total = admission.refused_total
    left: Line = (
        ("─ ", "band-border"),
        ("refused ", "text-muted"),
        (f"{total:,} ", "state-warning bold" if total else "bold"),
    )
    right: Line = ((f" {cut(words, max(0, width // 2))} ─", "text-muted"),) if words and width >= 100 else ()
    return split_ends(left, right, width, ("─", "band-border"))


def refusal_line(refused: Refused, width: int) -> Line:
    """One refusal in one row."""
    client_width = 12 if width < 80 else 16 if width < 100 else 24
    who = safe_text(refused.client)
    asked = f"prompt {format_count(refused.prompt_tokens)}"
    asked += f" + {format_count(refused.max_tokens)}" if refused.max_tokens is not None else ""
    head: Line = (
        (f"  {format_clock(refused.time_s)}  ", "text-muted"),
        (f"{pad(safe_text(refused.code), 18)} ", "state-warning bold"),
        (f"{pad(who, client_width)} ", "accent-text"),
        (f"{pad(refused.lane, 9)} ", "text-muted") if width >= 100 else ("", ""),
        (f"{use_words(refused)}  ", ""),
        (asked if width >= 120 else "", "text-muted"),
    )
    sent = sent_words(refused) if width >= 80 else f"{refused.status}"
    return split_ends(head, ((f"  {sent} ", "text-muted"),), width)


def use_words(refused: Refused) -> str:
    """The limit that said no and its use: `2 of 2`, or bytes for memory."""
    if refused.code in ("memory_budget_full", "memory_too_small"):
        return f"{format_bytes(refused.used)} of {format_bytes(refused.limit)}"
    return f"{format_count(refused.used)} of {format_count(refused.limit)}"


def sent_words(refused: Refused) -> str:
    """What the client was told: `sent 429, retry in 12 s`."""
    retry = f", retry in {refused.retry_after_s} s" if refused.retry_after_s is not None else ""
    return f"sent {refused.status}{retry}"
