"""A stream as a band: who and what phase on the frame, the rate big, its course, and the context against the limit.

Pure: a stream and a size in, lines out. A child hangs under its parent on a branch.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from rich.cells import cell_len

from console.format import (
    cut,
    format_ago,
    format_count,
    format_duration,
    format_rate,
    format_ratio,
    format_seconds,
    pad,
    pad_left,
    safe_text,
    short_id,
)
from console.widgets.context_bar import context_bar, context_legend, context_ratio, prompt_bar
from console.widgets.digits import big_text
from console.widgets.drafting import drafting_fact, drafting_line
from console.widgets.lines import Line, Span, fit_line, line_width, split_ends
from console.widgets.phases import eta_s, is_over, is_stalling, phase_sign
from console.widgets.plot import PlotSize, plot_rows, scaled_rows
from server.snapshot import StreamView

INDENT = 4
"""Cells by which a child stands in from its parent."""


class BandStyle(msgspec.Struct, frozen=True):
    """How much room each band has."""

    kind: Literal["big", "small"]
    body_rows: int
    """Rows of a big band's rate and plot; at least 3."""
    top_tps: float
    """Top of the rate plots' scale, the same for all bands so that they can be compared."""
    plain: bool = False
    """True when colours cannot be told apart: parts of bars then differ in shape."""
    ascii: bool = False
    """True when big numerals cannot be drawn."""

    @property
    def height(self) -> int:
        """Rows of one band with its frame."""
        return 2 + (self.body_rows + 3 if self.kind == "big" else 3)


class BandPlace(msgspec.Struct, frozen=True):
    """Where a band stands among the others."""

    width: int
    depth: int
    is_chosen: bool
    more_below: bool
    """True when another child of the same parent follows."""
    has_child: bool = False


def band_lines(stream: StreamView, style: BandStyle, place: BandPlace) -> list[Line]:
    """The whole band, `style.height` rows of `place.width` cells."""
    inner = place.width - place.depth * INDENT - 4
    body = _big_body(stream, style, inner) if style.kind == "big" else _small_body(stream, style, inner)
    if is_over(stream):
        body = [_dim(line) for line in body]
    framed = _frame(stream, body, place, inner)
    return [(*_branch(place, row), *line) for row, line in enumerate(framed)]


def _dim(line: Line) -> Line:
    return tuple((text, "state-finished") for text, _ in line)


def _branch(place: BandPlace, row: int) -> Line:
    if place.depth == 0:
        return ()
    before = " " * (INDENT * (place.depth - 1) + 2)
    if row < 2:
        return ((f"{before}{'│ ' if row == 0 else ('├─' if place.more_below else '╰─')}", "band-border"),)
    return ((f"{before}{'│ ' if place.more_below else '  '}", "band-border"),)


def _frame(stream: StreamView, body: list[Line], place: BandPlace, inner: int) -> list[Line]:
    symbol, words, role = phase_sign(stream)
    colour = "band-selected" if place.is_chosen else "band-border"
    corners, flat, side = ("┏┓┗┛", "━", "┃") if place.is_chosen else ("╭╮╰╯", "─", "│")
    name = cut(safe_text(stream.client), max(6, inner // 3))
    head: Line = (
        (f"{corners[0]}{flat} ", colour),
        (stream.lane, f"{'text-strong' if place.depth == 0 else 'state-prefill'} bold"),
        (f" {flat} ", colour),
        (name, "accent-text"),
        *(((f" at {cut(stream.upstream, max(6, inner // 5))}", "accent-text bold"),) if stream.upstream else ()),
        (f" {flat} ", colour),
        (f"{short_id(stream.id)} ", "text-muted"),
    )
    ending = f" · {format_ago(stream.finished_ago_s)}" if stream.finished_ago_s is not None else ""
    tail: Line = ((f" {symbol} {words}{ending} ", f"{role} bold"), (f"{flat}{corners[1]}", colour))
    left_wall = "┨" if place.is_chosen else "┤"
    framed = [split_ends(head, tail, inner + 4, (flat, colour))]
    for row, line in enumerate(body):
        wall = left_wall if place.depth and row == 0 else side
        framed.append(((f"{wall} ", colour), *fit_line(line, inner), (f" {side}", colour)))
    knot = ("┯" if place.is_chosen else "┬") if place.has_child else flat
    framed.append(((f"{corners[2]}{flat}{knot}{flat * (inner)}{corners[3]}", colour),))
    return framed


def _small_body(stream: StreamView, style: BandStyle, inner: int) -> list[Line]:
    bar, legend = _context_lines(stream, style, inner)
    if is_over(stream) and stream.outcome_detail:
        legend = ((cut(safe_text(stream.outcome_detail), inner), ""),)
    return [_small_rate(stream, style, inner), bar, legend]


def _small_rate(stream: StreamView, style: BandStyle, inner: int) -> Line:
    rate, role = _headline(stream)
    head: Line = ((pad_left(rate, 6), f"{role} bold"), (" tok/s  ", "text-muted"))
    tail = _small_facts(stream, inner)
    room = inner - line_width(head) - line_width(tail) - 2
    if stream.phase == "prefill":
        course: Line = prompt_bar(stream, max(1, room), style.plain)
    elif stream.phase == "waiting":
        what = "for its first step" if stream.queue_position is None else "for a place"
        course = ((pad(what, room), "text-muted"),)
    else:
        course = plot_rows(stream.decode_history_tps, max(1, room), 1, style.top_tps, "state-decode")[0]
    return (*head, *fit_line(course, max(0, room)), ("  ", ""), *tail)


def _small_facts(stream: StreamView, inner: int) -> Line:
    facts = _facts(stream)
    drafting = drafting_fact(stream)
    if drafting and stream.phase not in {"prefill", "waiting"}:
        facts.insert(1, drafting)
    if stream.phase == "prefill":
        read = f"{format_count(stream.prefill_done_tokens)} of {format_count(stream.prompt_tokens)}"
        facts = [("read", read), facts[1]]
    while len(facts) > 1 and sum(len(name) + len(value) + 3 for name, value in facts) > inner - 24:
        facts.pop()
    spans: list[Span] = []
    for name, value in facts:
        spans += [(f"{'  ' if spans else ''}{name} ", "text-muted"), (value, "")]
    return tuple(spans)


def _context_lines(stream: StreamView, style: BandStyle, inner: int) -> list[Line]:
    ratio = context_ratio(stream)
    used = f"{format_count(stream.context_tokens)} of {format_count(stream.context_limit_tokens)}"
    head: Line = (("context ", "text-muted"), (f"{used}  ", "bold"))
    full = ratio is not None and ratio >= 0.9
    tail: Line = ((f" {pad_left(format_ratio(ratio), 5)}", f"{'state-warning' if full else ''} bold"),)
    room = inner - line_width(head) - line_width(tail)
    legend = context_legend(stream, inner - (8 if inner >= 90 else 0), style.plain)
    return [(*head, *context_bar(stream, room, style.plain), *tail), ((" " * (8 if inner >= 90 else 0), ""), *legend)]


def _headline(stream: StreamView) -> tuple[str, str]:
    """The rate that matters in this phase, and its colour."""
    if stream.phase in {"prefill", "waiting"}:
        return format_rate(stream.prefill_tps), "state-prefill" if stream.phase == "prefill" else "state-waiting"
    return format_rate(stream.decode_tps), "state-warning" if is_stalling(stream) else "state-decode"


def _facts(stream: StreamView) -> list[tuple[str, str]]:
    out = f"{format_count(stream.completion_tokens)} of {format_count(stream.max_tokens)}"
    if stream.phase == "prefill":
        return [("age", format_duration(stream.age_s)), ("left", _eta_words(stream))]
    if stream.phase == "waiting":
        return [("prompt", format_count(stream.prompt_tokens)), ("waited", format_seconds(stream.age_s))]
    return [("out", out), ("TTFT", format_seconds(stream.ttft_s)), ("age", format_duration(stream.age_s))]


def _eta_words(stream: StreamView) -> str:
    left = eta_s(stream)
    return "-" if left is None else f"{format_seconds(left)}"


def _big_body(stream: StreamView, style: BandStyle, inner: int) -> list[Line]:
    rate = _big_rate(stream, style)
    rate_width = 30 if inner >= 84 else 26
    facts = _big_facts(stream)
    facts_width = 28 if inner >= 96 else 24
    room = inner - rate_width - facts_width - 2
    course = (
        _prefill_course(stream, room, style)
        if stream.phase in {"prefill", "waiting"}
        else _decode_course(stream, room, style)
    )
    rows = [
        (
            *fit_line(_at(rate, i), rate_width),
            *fit_line(_at(course, i), room),
            ("  ", ""),
            *fit_line(_at(facts, i), facts_width),
        )
        for i in range(style.body_rows)
    ]
    why = safe_text(stream.outcome_detail) if is_over(stream) else ""
    below: Line = ((cut(why, inner), ""),) if why else drafting_line(stream)
    return [*rows, below, *_context_lines(stream, style, inner)]


def _at(lines: list[Line], row: int) -> Line:
    return lines[row] if row < len(lines) else (("", ""),)


def _big_rate(stream: StreamView, style: BandStyle) -> list[Line]:
    text, role = _headline(stream)
    unit = "tok/s"
    what = "reading" if stream.phase == "prefill" else "on average" if is_over(stream) else ""
    if style.ascii:
        return [(("  ", ""), (text, f"{role} bold"), (f" {unit}", "text-muted")), ((f"  {what}", "text-muted"),)]
    top, middle, bottom = big_text(text)
    return [
        (("  ", ""), (top, role), ("  ", "")),
        (("  ", ""), (middle, role), (f"  {what}", "text-muted")),
        (("  ", ""), (bottom, role), (f"  {unit}", "text-muted")),
    ]


def _decode_course(stream: StreamView, width: int, style: BandStyle) -> list[Line]:
    return scaled_rows(stream.decode_history_tps, PlotSize(width, style.body_rows), style.top_tps, "state-decode")


def _prefill_course(stream: StreamView, width: int, style: BandStyle) -> list[Line]:
    if stream.phase == "waiting":
        what = "admitted, waiting for its first step" if stream.queue_position is None else "waiting for a place"
        return [((what, "text-muted"),)]
    ratio = stream.prefill_done_tokens / stream.prompt_tokens if stream.prompt_tokens else None
    read: Line = (
        ("prompt ", "text-muted"),
        (f"{format_count(stream.prefill_done_tokens)} of {format_count(stream.prompt_tokens)}", "bold"),
    )
    done: Line = ((f"{format_ratio(ratio)}", "state-prefill bold"),)
    to_read = stream.prompt_tokens - stream.prefill_done_tokens
    rest: Line = (
        (f"{format_count(to_read)} to read", "text-muted"),
        (f" · {format_seconds(eta_s(stream))} left" if eta_s(stream) is not None else "", "text-strong"),
    )
    bar = prompt_bar(stream, width, style.plain)
    return [split_ends(read, done, width), *[bar] * (style.body_rows - 2), rest]


def _big_facts(stream: StreamView) -> list[Line]:
    rows = _facts(stream)
    if stream.phase == "prefill":
        rows = [*rows, ("cache", f"{format_count(stream.cached_tokens)} reused")]
    elif stream.phase != "waiting":
        rows = [*rows, ("prefill", f"{format_rate(stream.prefill_tps)} tok/s")]
    if is_stalling(stream):
        rows = [*rows[:2], ("idle", f"▲ {format_seconds(stream.idle_s)}"), *rows[2:]]
    return [
        ((pad(name, 8), "text-muted"), (value, "state-warning bold" if name == "idle" else "")) for name, value in rows
    ]


def ended_line(stream: StreamView, width: int) -> Line:
    """A finished stream in one dim row with how it ended; the reason is the last thing to be cut."""
    symbol, words, role = phase_sign(stream)
    client, id = cut(safe_text(stream.client), 20), short_id(stream.id)
    detail = f" · {safe_text(stream.outcome_detail)}" if stream.outcome_detail else ""
    tokens = f"{format_count(stream.completion_tokens)} tokens"
    ago = format_ago(stream.finished_ago_s)
    room = width - len(f" {symbol} {words} ")
    variants = (
        (f" {stream.lane} {client} {id}{detail}", f"  {tokens} in {format_duration(stream.age_s)}, {ago} "),
        (f" {client} {id}{detail}", f"  {tokens}, {ago} "),
        (f" {cut(client, max(6, room - cell_len(detail) - len(ago) - 4))}{detail}", f"  {ago} "),
    )
    who, tail = next((pair for pair in variants if cell_len("".join(pair)) <= room), variants[-1])
    head: Line = ((f" {symbol} {words} ", role), (who, "state-finished"))
    return split_ends(head, ((tail, "state-finished"),), width)
