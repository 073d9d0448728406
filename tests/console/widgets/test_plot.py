"""Plots have a fixed scale from zero: calm stays calm, and nothing above zero vanishes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.widgets.digits import big_text
from console.widgets.lines import Line, line_width
from console.widgets.plot import PlotSize, format_scale, plot_block, plot_columns, plot_rows


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


def test_the_newest_value_is_at_the_right_and_missing_ones_are_empty() -> None:
    assert plot_columns([1.0, 2.0], 4) == [0.0, 0.0, 1.0, 2.0]
    assert plot_columns([1.0, 2.0, 3.0], 2) == [2.0, 3.0]


def test_a_steady_rate_is_a_steady_line() -> None:
    rows = [text_of(row) for row in plot_rows([47.0, 47.5, 46.8, 47.2], 4, 4, 80.0, "state-decode")]
    assert rows == ["    ", "▃▃▃▃", "████", "████"]


def test_half_of_the_scale_is_half_of_the_height() -> None:
    rows = [text_of(row) for row in plot_rows([50.0, 100.0, 0.0], 3, 2, 100.0, "state-decode")]
    assert rows == [" █ ", "██ "]


def test_the_edge_is_bright_and_what_is_under_it_is_dim() -> None:
    rows = plot_rows([100.0], 1, 2, 100.0, "state-decode")
    assert rows == [(("█", "plot-decode"),), (("█", "plot-decode-low"),)]


@given(st.lists(st.floats(0, 2000), max_size=80), st.integers(1, 60), st.integers(1, 9))
def test_every_row_has_the_width_and_every_value_shows(values: list[float], width: int, rows: int) -> None:
    lines = [text_of(row) for row in plot_rows(values, width, rows, 2000.0, "state-prefill")]
    assert [len(line) for line in lines] == [width] * rows
    for column, value in zip(lines[-1], plot_columns(values, width), strict=True):
        assert (column == " ") == (value <= 0)


@given(st.lists(st.floats(0, 99_999), max_size=30), st.integers(30, 90), st.integers(1, 9))
def test_a_headed_plot_fills_its_size(values: list[float], width: int, rows: int) -> None:
    block = plot_block("decode", values, None, PlotSize(width, rows), "state-decode")
    assert len(block) == rows + 1
    assert all(line_width(line) <= width for line in block)
    assert text_of(block[0]).startswith("decode - tok/s")


def test_scales_are_short() -> None:
    assert format_scale(60) == "60"
    assert format_scale(15_000) == "15k"


def test_big_numerals_are_three_rows_of_one_width() -> None:
    for text in ("58.4", "1,377", "0", "-"):
        assert len({len(row) for row in big_text(text)}) == 1


def test_the_peak_is_not_below_the_rate_now() -> None:
    head = text_of(plot_block("decode", [40.0, 44.0], 61.0, PlotSize(60, 4), "state-decode", "60 s")[0])
    assert "61" in head.partition("peak")[0]
    assert "peak 61" in head
