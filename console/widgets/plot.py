"""Rate plots on a fixed scale from zero, in eighths of a cell. Pure: numbers in, rows of text out.

Scaling to the window's own minimum and maximum would make a steady 47 tok/s look like a storm.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from console.format import format_rate, nice_max, pad_left
from console.widgets.lines import Line, Span, fit_line, split_ends

EIGHTHS = " ▁▂▃▄▅▆▇█"


def plot_columns(values: Sequence[float], width: int) -> list[float]:
    """One value for each of `width` cells, the newest at the right; what there was before the first is zero."""
    recent = list(values[-width:]) if width > 0 else []
    return [0.0] * (width - len(recent)) + recent


def plot_rows(values: Sequence[float], width: int, rows: int, top: float, colour: str) -> list[Line]:
    """Columns from 0 to `top`, first row uppermost; the upper edge bright, what is under it dim.

    A value above zero always shows.
    """
    heights = [_eighths(value, rows, top) for value in plot_columns(values, width)]
    bright = colour.replace("state-", "plot-")
    return [_shade([height - 8 * below for height in heights], bright) for below in reversed(range(rows))]


def _shade(levels: Sequence[int], bright: str) -> Line:
    spans: list[Span] = []
    for is_under, cells in groupby(levels, lambda level: level > 8):
        spans.append(
            ("".join(EIGHTHS[max(0, min(8, level))] for level in cells), f"{bright}-low" if is_under else bright)
        )
    return tuple(spans)


def _eighths(value: float, rows: int, top: float) -> int:
    if value <= 0 or top <= 0:
        return 0
    return max(1, min(8 * rows, round(8 * rows * value / top)))


class PlotSize(msgspec.Struct, frozen=True):
    """Cells of a headed plot."""

    width: int
    rows: int
    """Without the head."""


def plot_block(
    title: str, values: Sequence[float], now: float | None, size: PlotSize, colour: str, span: str = "5 min"
) -> list[Line]:
    """A headed plot: the rate now in words above, the peak of `span`, the scale at the left."""
    peak = max((*values, now or 0.0))  # the rate of the last tokens may be above that of any whole second
    scale = nice_max(peak)
    head: Line = ((f"{title} ", "text-muted"), (format_rate(now), f"{colour} bold"), (" tok/s", "text-muted"))
    tail: Line = ((f"peak {format_rate(peak) if peak else '-'} in {span} ", "text-muted"),) if size.width >= 50 else ()
    return [
        split_ends(head, tail, size.width),
        *scaled_rows(values, PlotSize(size.width - 1, size.rows), scale, colour),
    ]


def scaled_rows(values: Sequence[float], size: PlotSize, top: float, colour: str) -> list[Line]:
    """The rows of a plot with the scale's ends at its left."""
    label = format_scale(top)
    label_width = max(4, len(label))
    rows = plot_rows(values, max(1, size.width - label_width - 1), size.rows, top, colour)
    marks = [label, *[""] * (size.rows - 2), "0"] if size.rows > 1 else [label]
    return [
        ((pad_left(mark, label_width), "text-muted"), ("┤" if mark else "│", "plot-grid"), *row)
        for mark, row in zip(marks, rows, strict=True)
    ]


def format_scale(top: float) -> str:
    """The number at the top of a scale, short enough for five cells."""
    return f"{top / 1000:g}k" if top >= 10_000 else f"{top:g}"


def beside(left: Sequence[Line], right: Sequence[Line], width: int, gap: int) -> list[Line]:
    """Two blocks next to each other; the left one is `width` cells wide."""
    rows = max(len(left), len(right))
    blank: Line = (("", ""),)
    return [
        (
            *fit_line(left[i] if i < len(left) else blank, width),
            (" " * gap, ""),
            *(right[i] if i < len(right) else blank),
        )
        for i in range(rows)
    ]
