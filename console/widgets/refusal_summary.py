"""Counts of refusals by code and client, and one refusal told in full."""

from __future__ import annotations

from collections import Counter

from console.format import cut, format_clock, format_count, safe_text, wrap_words
from console.widgets.lines import Line, Span, join_whole, line_width
from console.widgets.refusal_lines import sent_words, use_words
from server.events import Refused
from server.snapshot import Snapshot

RECENT_S = 600.0
"""`In the last 10 minutes` is what an operator asks first."""


LEAST_SESSION = 8
"""Cells; fewer of a session's name tell nothing."""


def refusal_summary(refusals: list[Refused], shown: int, snapshot: Snapshot, width: int) -> list[Line]:
    """How many, in which time, by which code and client."""
    total = snapshot.admission.refused_total
    recent = sum(snapshot.time_s - refused.time_s <= RECENT_S for refused in refusals)
    head: list[Span] = [(" refused ", "text-muted"), (f"{total:,}", "state-warning bold" if total else "bold")]
    head += [("   in 10 min ", "text-muted"), (f"{recent:,}", "bold")]
    if shown != len(refusals):
        head += [("   shown ", "text-muted"), (f"{shown:,} of {len(refusals):,}", "accent-text bold")]
    lines: list[Line] = [tuple(head)]
    if refusals:
        lines.append(_counts(" by code  ", Counter(snapshot.admission.refused_by_code), width))
        lines.append(_counts(" by client", Counter(refused.client for refused in refusals), width))
    return lines


def _counts(label: str, counts: Counter[str], width: int) -> Line:
    line: list[Span] = [(f"{label} ", "text-muted")]
    most = max(counts.values(), default=1)
    for name, count in counts.most_common():
        bar = "■" * max(1, round(8 * count / most))
        part: list[Span] = [
            (f" {cut(safe_text(name), 24)} ", ""),
            (f"{count:,} ", "bold"),
            (f"{bar} ", "state-warning"),
        ]
        if line_width((*line, *part)) <= width:
            line += part
    return tuple(line)


def refusal_facts(refused: Refused, width: int, rows: int) -> list[Line]:
    """One refusal in `rows` lines under a rule: the numbers, then the sentence that the client read."""
    rule: Line = (("─" * width, "band-border"),)
    asked = format_count(refused.max_tokens) if refused.max_tokens is not None else "not said"
    facts: list[Line] = [
        ((f" {format_clock(refused.time_s)}  ", "text-muted"), (f"{safe_text(refused.code)}  ", "state-warning bold")),
        (("use ", "text-muted"), (f"{use_words(refused)}  ", "bold")),
        (("prompt ", "text-muted"), (f"{format_count(refused.prompt_tokens)}  ", "")),
        (("max_tokens ", "text-muted"), (f"{asked}  ", "")),
        ((sent_words(refused), "text-muted"),),
    ]
    room = max(1, rows - 2)
    told = _told(safe_text(refused.message), width - 2, room)
    who = _who(refused, width)
    return [
        rule,
        join_whole(facts, width),
        *([who] if rows > 3 else []),
        *(((f" {line}", "text-strong"),) for line in told),
    ]


def _who(refused: Refused, width: int) -> Line:
    """Whose it was; the session's name is the first to give way, its end replaced by `…`."""
    deep = f", depth {refused.depth}" if refused.depth > 1 else ""
    known: list[Line] = [
        ((" from ", "text-muted"), (safe_text(refused.client), "accent-text"), (f"  {refused.lane}{deep}", "")),
        (("  request ", "text-muted"), (safe_text(refused.request_id), "")),
    ]
    line = join_whole(known, width)
    room = width - line_width(line) - len("  session ")
    if room < LEAST_SESSION:
        return line
    return (*line, ("  session ", "text-muted"), (cut(safe_text(refused.session), room), ""))


def _told(text: str, width: int, rows: int) -> list[str]:
    lines = wrap_words(text, width)
    if len(lines) <= rows:
        return lines
    return [*lines[: rows - 1], cut(f"{lines[rows - 1]} …", width)]
