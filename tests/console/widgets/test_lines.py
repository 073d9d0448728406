"""Lines are exactly as wide as promised, and only changed rows are drawn again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.selection import Selection

from console.widgets.lines import Line, Lines, fit_line, line_width, plain_ascii, resolve_role, split_ends

spans = st.lists(st.tuples(st.text(alphabet="ab语·█", max_size=9), st.just("")), max_size=5).map(tuple)


@given(spans, st.integers(0, 60))
def test_a_fitted_line_has_its_width(line: Line, width: int) -> None:
    assert line_width(fit_line(line, width)) == width


@given(spans, spans, st.integers(1, 60))
def test_two_ends_fill_the_width_when_the_right_one_fits(left: Line, right: Line, width: int) -> None:
    if line_width(right) <= width:
        assert line_width(split_ends(left, right, width)) == width


def test_ascii_signs_keep_their_width() -> None:
    signs = "━─┃│┏┓┗┛╭╮╰╯├┤┨┯┬█▓▒░▁▂▃▄▅▆▇▀■·●◐○▲✕↯◌╍╿…→»"
    assert plain_ascii(signs).isascii()
    assert cell_len(plain_ascii(signs)) == cell_len(signs)


def test_roles_are_theme_variables_and_attributes() -> None:
    style = resolve_role("state-ok bold on-panel unheard-of", {"state-ok": "#010203", "panel": "#040506"})
    assert style.bold
    assert style.color is not None
    assert style.color.name == "#010203"
    assert style.bgcolor is not None
    assert style.bgcolor.name == "#040506"


class Watched(Lines):
    """Lines that note which regions they were asked to draw."""

    drawn: list[Region]

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Watched:
        if not hasattr(self, "drawn"):
            self.drawn = []
        self.drawn.extend(regions)
        super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        return self


class Bench(App[None]):
    def compose(self) -> ComposeResult:
        yield Watched()


async def test_only_rows_that_changed_are_drawn() -> None:
    app = Bench()
    async with app.run_test(size=(20, 5)) as pilot:
        lines = app.query_one(Watched)
        lines.show_lines([(("one", ""),), (("two", ""),)])
        await pilot.pause()
        lines.drawn.clear()
        lines.show_lines([(("one", ""),), (("2", ""),)])
        assert [(region.y, region.height) for region in lines.drawn] == [(1, 1)]
        lines.drawn.clear()
        lines.show_lines([(("one", ""),), (("2", ""),)])
        assert lines.drawn == []


async def test_shown_text_can_be_selected_for_copying() -> None:
    app = Bench()
    async with app.run_test(size=(20, 5)):
        lines = app.query_one(Watched)
        lines.show_lines([(("one ", ""), ("more", "bold"), ("   ", "")), (("two", ""),)])
        chosen = lines.get_selection(Selection(None, None))
        assert chosen is not None
        assert chosen[0] == "one more\ntwo"


@pytest.mark.parametrize("width", [1, 7])
async def test_a_line_wider_than_the_terminal_is_cut(width: int) -> None:
    app = Bench()
    async with app.run_test(size=(width, 2)) as pilot:
        app.query_one(Watched).show_lines([(("wide 語語語語語", ""),)])
        await pilot.pause()
        assert app.query_one(Watched).render_line(0).cell_length == width
