"""Help: the keys of the screen it was opened from, the legend, scrolling, closing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.containers import VerticalScroll

from console.app import HomebaseApp
from console.screens.help import HelpScreen, help_lines
from console.widgets.context_bar import context_bar
from console.widgets.lines import Lines, line_width, plain_ascii

ROWS = [("Enter  e", "Type a value for this limit."), ("s  ^s  F2", "Write the file and put it in force.")]
LEGEND = [
    ("▲ HIGH", "state-warning", "memory: 80 % of the machine's is in use, and the word says so beside the colour")
]
PART_NAMES = ("cached", "prefilled", "to read", "generated", "free")


@pytest.mark.parametrize("width", [40, 60, 78, 120])
def test_no_line_is_wider_than_the_page(width: int) -> None:
    assert all(line_width(line) <= width for line in help_lines(ROWS * 5, LEGEND * 5, width))


def test_keys_come_first_and_then_the_legend() -> None:
    text = ["".join(part for part, _ in line) for line in help_lines(ROWS, LEGEND, 60)]
    assert text[0].startswith("keys")
    assert any(line.startswith(" s  ^s  F2") and "Write the file" in line for line in text)
    assert next(i for i, line in enumerate(text) if "signs" in line) > 2
    assert " ".join(text).count("▲ HIGH") == 1


@pytest.mark.parametrize(("place", "words"), [("3", "Write the file"), ("4", "Copy the chosen line")])
async def test_help_shows_the_keys_of_the_screen_underneath(
    make_app: Callable[..., HomebaseApp], source: Any, read_screen: Callable[[Any], str], place: str, words: str
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(place)
        under = app.screen
        await pilot.press("question_mark")
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        assert words in read_screen(app)
        await pilot.press("escape")
        assert app.screen is under


@pytest.mark.parametrize("ascii", [False, True], ids=["blocks", "ascii"])
@pytest.mark.parametrize("no_color", [False, True], ids=["colours", "no-colours"])
async def test_the_legend_has_the_very_signs_that_bars_are_drawn_with(
    make_app: Callable[..., HomebaseApp],
    source: Any,
    samples: Any,
    monkeypatch: pytest.MonkeyPatch,
    ascii: bool,
    no_color: bool,
) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(source, ascii=ascii)
    assert app.no_color == no_color
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        await pilot.pause()
        page = ["".join(text for text, _ in line) for line in app.screen.query_one(Lines).lines]
    signs = [line.split()[0] for line in page if any(f" {name}: " in line for name in PART_NAMES)]
    bar = context_bar(samples.stream(prompt_tokens=60_000), 60, plain=ascii or no_color)
    assert signs == [text[0] for text, _ in bar]
    assert len(set(plain_ascii("".join(signs)) if ascii else signs)) == (5 if ascii or no_color else 3)


async def test_help_scrolls_and_closes_by_several_keys(make_app: Callable[..., HomebaseApp], source: Any) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        for key in ("escape", "q", "question_mark", "f1"):
            app.push_screen(HelpScreen("test", ROWS * 20, LEGEND * 20))
            await pilot.pause()
            await pilot.pause()
            page = app.screen.query_one("#help-page", VerticalScroll)
            await pilot.press("j", "down", "space")
            await pilot.pause()
            assert page.scroll_y > 2
            await pilot.press("G")
            await pilot.pause()
            assert page.scroll_y == page.max_scroll_y
            await pilot.press("g", key)
            await pilot.pause()
            assert not isinstance(app.screen, HelpScreen)


async def test_looks(
    make_app: Callable[..., HomebaseApp], source: Any, snap: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HomebaseApp, "DEFAULT_MODE", "log")
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(HelpScreen("policy", ROWS, LEGEND))
        await pilot.pause()
        await pilot.pause()
        snap(app, "help")
