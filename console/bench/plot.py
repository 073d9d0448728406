"""The plot of a fan-out, as SVG for a page and as bars for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from console.bench.fan_out import Mode, Outcome
from console.format import format_rate, nice_max

WIDTH, PANEL, HEAD = 720, 330, 64
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 46, 52
COLORS: dict[Mode, str] = {"off": "#b3541e", "on": "#1f5fa8"}
NAMES: dict[Mode, str] = {"off": "policy off", "on": "policy on"}
_INK, _FAINT, _FLOOR = "#222222", "#d8d8d8", "#7a7a7a"
_BAR_WIDTH = 40

_Place = Callable[[int], float]
_PlaceRate = Callable[[float], float]


def draw_svg(outcomes: Sequence[Outcome], floor_tps: float, title: str) -> str:
    """Decode rate per stream against streams, a panel for each context; dots are medians, bars reach to the lowest."""
    contexts = sorted({outcome.case.context_tokens for outcome in outcomes})
    top = nice_max(max([floor_tps, *(rate for outcome in outcomes for rate in outcome.rates_tps)]) * 1.05)
    height = HEAD + PANEL * len(contexts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{_INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 28, title, "start", size=17),
        _text(_LEFT, 50, "Decode rate per stream: dot = median of the streams, bar = down to the slowest.", "start"),
    ]
    for index, context in enumerate(contexts):
        found = [outcome for outcome in outcomes if outcome.case.context_tokens == context]
        parts.append(_draw_panel(found, context, floor_tps, top, HEAD + PANEL * index))
    return "\n".join([*parts, "</svg>", ""])


def draw_bars(outcomes: Sequence[Outcome], floor_tps: float, *, ascii_only: bool = False) -> str:
    """The lowest decode rate of each fan-out as a bar, with a mark at the floor; fits 80 columns."""
    top = max([floor_tps, *(outcome.lowest_tps or 0.0 for outcome in outcomes)])
    block, mark = ("#", "|") if ascii_only else ("█", "│")
    lines = [f"decode rate of the slowest stream, tok/s; {mark} is {format_rate(floor_tps)}"]
    for outcome in outcomes:
        case, rate = outcome.case, outcome.lowest_tps
        bar = block * round((rate or 0.0) / top * _BAR_WIDTH)
        at = min(_BAR_WIDTH - 1, round(floor_tps / top * _BAR_WIDTH))
        cells = list(bar.ljust(_BAR_WIDTH))
        cells[at] = mark
        label = f"{case.context_tokens:>9,} {case.mode:<3} {case.streams:>2}"
        lines.append(f"{label} {''.join(cells)} {format_rate(rate)}".rstrip())
    return "\n".join(lines)


def _draw_panel(outcomes: Sequence[Outcome], context: int, floor_tps: float, top: float, y: int) -> str:
    counts = sorted({outcome.case.streams for outcome in outcomes})
    right, bottom = WIDTH - _RIGHT, y + PANEL - _BOTTOM

    def place_x(streams: int) -> float:
        span = counts[-1] - counts[0]
        return _LEFT + 24 + ((streams - counts[0]) / span if span else 0.5) * (right - _LEFT - 48)

    def place_y(rate: float) -> float:
        return bottom - rate / top * (bottom - y - _TOP)

    parts = [_text(_LEFT, y + 26, f"{context:,} tokens of context", "start", size=14)]
    for step in range(5):
        rate = top * step / 4
        parts.append(_line(_LEFT, place_y(rate), right, place_y(rate), _FAINT))
        parts.append(_text(_LEFT - 8, place_y(rate) + 4, format_rate(rate), "end"))
    parts += [_text(place_x(count), bottom + 20, str(count), "middle") for count in counts]
    parts.append(_text((_LEFT + right) / 2, bottom + 40, "streams at once", "middle"))
    parts.append(_text(_LEFT - 8, y + _TOP - 12, "tok/s", "end"))
    parts.append(_line(_LEFT, place_y(floor_tps), right, place_y(floor_tps), _FLOOR, dash="6 4"))
    parts.append(_text(right + 8, place_y(floor_tps) + 4, f"{format_rate(floor_tps)} tok/s", "start", color=_FLOOR))
    modes: tuple[Mode, ...] = ("off", "on")
    for row, mode in enumerate(modes):
        ran = [outcome for outcome in outcomes if outcome.case.mode == mode]
        if ran:
            # Side by side, so that one half does not hide the other where both are the same.
            shift = -3.0 if mode == "off" else 3.0
            parts.append(_draw_series(ran, mode, lambda count, by=shift: place_x(count) + by, place_y))
            parts.append(f'<circle cx="{right + 20}" cy="{y + 22 + 20 * row}" r="5" fill="{COLORS[mode]}"/>')
            parts.append(_text(right + 32, y + 26 + 20 * row, NAMES[mode], "start"))
    return "\n".join(parts)


def _draw_series(outcomes: Sequence[Outcome], mode: Mode, place_x: _Place, place_y: _PlaceRate) -> str:
    color = COLORS[mode]
    known = [
        (place_x(outcome.case.streams), place_y(middle), place_y(outcome.lowest_tps or middle))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.case.streams)
        if (middle := outcome.median_tps) is not None
    ]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in known)
    parts = [f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>']
    for x, y, low in known:
        parts.append(_line(x, y, x, low, color, width=4))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{color}"/>')
    return "\n".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, color: str, *, width: int = 1, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{color}" stroke-width="{width}"{dashes}/>'
    )


def _text(x: float, y: float, text: str, anchor: str, *, size: int = 13, color: str = _INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{escape(text)}</text>'
    )
