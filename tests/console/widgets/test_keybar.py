"""The key bar: it names what works now, marks unsaved edits everywhere, and follows the size of the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from console.app import HomebaseApp
from console.screens.dialogs import ConfirmDialog

if TYPE_CHECKING:
    from tests.console.conftest import FakeSource

MakeApp = Callable[..., HomebaseApp]
Read = Callable[[Any], str]


def bar(read_screen: Read, app: HomebaseApp) -> str:
    return read_screen(app).splitlines()[-1]


@pytest.mark.parametrize("keys", [("3", "enter"), ("2", "slash"), ("4", "slash")], ids=["limit", "refusals", "log"])
async def test_while_text_is_typed_only_keys_that_work_are_named(
    make_app: MakeApp, source: FakeSource, read_screen: Read, keys: tuple[str, ...]
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        shown = bar(read_screen, app)
        assert "F1 Help" in shown
        assert "^q Quit" in shown
        assert "^p Commands" in shown
        assert "?" not in shown
        await pilot.press("escape")
        await pilot.pause()
        assert "? Help  q Quit" in bar(read_screen, app)


async def test_unsaved_edits_are_marked_on_every_screen_until_they_are_saved(
    make_app: MakeApp, source: FakeSource, read_screen: Read
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "1", "3", "right")
        await pilot.pause()
        assert "3 Policy •1 " in bar(read_screen, app)
        for place in ("1", "2", "4", "1", "enter"):
            await pilot.press(place)
            await pilot.pause()
            assert "3 Policy •1 " in bar(read_screen, app)
        await pilot.press("3", "down", "right")
        await pilot.pause()
        assert "3 Policy •2 " in bar(read_screen, app)
        await pilot.press("s")
        await pilot.pause()
        assert "3 Policy  4" in bar(read_screen, app)
        await pilot.press("2")
        await pilot.pause()
        assert "3 Policy  4" in bar(read_screen, app)


async def test_a_dialogs_keys_stand_in_place_of_those_that_do_not_work_under_it(
    make_app: MakeApp, source: FakeSource, read_screen: Read
) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("x")
        assert isinstance(app.screen, ConfirmDialog)
        for width, height in ((140, 40), (100, 30)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            shown = bar(read_screen, app)
            assert shown.startswith(" ← → Choose  ⏎ Press  esc Leave it")
            assert "Streams" not in shown
            assert "Quit" not in shown
        await pilot.press("escape")
        await pilot.pause()
        assert bar(read_screen, app).startswith(" 1 Streams")
        assert bar(read_screen, app).endswith("? Help  q Quit")
