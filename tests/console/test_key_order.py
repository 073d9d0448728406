"""Keys that arrive bunched do what they do when they are typed slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import HomebaseApp
from console.screens.dialogs import QuitDialog
from console.screens.help import HelpScreen
from console.screens.log import LogScreen
from console.screens.policy import PolicyScreen
from console.screens.refusals import RefusalsScreen
from console.screens.streams import StreamsScreen
from console.widgets.limit_table import LimitTable
from server.events import LogLine

KEY = "policy.max_in_flight"


class Typist:
    """Types without waiting for anything."""

    def __init__(self, app: HomebaseApp, pilot: Pilot[Any], source: Any) -> None:
        self.app, self.pilot, self.source = app, pilot, source

    async def bunch(self, *typed: str | events.Event) -> None:
        """Names of keys, or single characters, all in one go; then wait until they are done."""
        for each in typed:
            self.app.post_message(_key(each) if isinstance(each, str) else each)
        for _ in range(200):
            await asyncio.sleep(0.01)
            if not self.app.is_running or not self.app.key_order.is_busy:
                break
        if self.app.is_running:
            await self.pilot.pause()
            await self.pilot.pause()

    @property
    def field(self) -> Input:
        return self.app.screen.query_one(Input)


def _key(name: str) -> events.Key:
    if len(name) == 1:
        return events.Key(name if name.isalnum() else _character_to_key(name), name)
    return events.Key(name, {"enter": "\r", "escape": "\x1b", "space": " "}.get(name))


@pytest.fixture
def typist(make_app: Callable[..., HomebaseApp], source: Any) -> Callable[..., Any]:
    @asynccontextmanager
    async def run(*opened_by: str) -> AsyncGenerator[Typist]:
        app = make_app(source)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            if opened_by:
                await pilot.press(*opened_by)
                await pilot.pause()
            yield Typist(app, pilot, source)

    return run


async def test_a_limit_is_edited_and_saved_by_one_bunch_of_keys(typist: Callable[..., Any], source: Any) -> None:
    async with typist("3") as typing:
        await typing.bunch("enter", "ctrl+u", "1", "enter", "s")
        assert source.acts == [("save", {KEY: 1})]


async def test_the_same_bunch_works_from_another_screen(typist: Callable[..., Any], source: Any) -> None:
    async with typist() as typing:
        await typing.bunch("3", "enter", "ctrl+u", "1", "enter", "s")
        assert source.acts == [("save", {KEY: 1})]


async def test_keys_for_a_screen_that_is_being_opened_wait_for_it(typist: Callable[..., Any]) -> None:
    async with typist() as typing:
        await typing.bunch("3", "down", "down", "enter")
        table = typing.app.screen.query_one(LimitTable)
        assert table.is_open
        assert table.cursor_key != KEY


async def test_editing_keys_and_letters_keep_their_order(typist: Callable[..., Any]) -> None:
    async with typist("3") as typing:
        await typing.bunch("enter", "ctrl+u", "1", "2", "backspace", "3", "home", "4", "end", "5")
        assert typing.field.value == "4135"


async def test_a_paste_keeps_its_place_among_keys(typist: Callable[..., Any]) -> None:
    async with typist("3") as typing:
        await typing.bunch("enter", "ctrl+u", "1", events.Paste("23"), "backspace", "4")
        assert typing.field.value == "124"


async def test_escape_closes_the_field_before_the_next_key(typist: Callable[..., Any]) -> None:
    async with typist("3") as typing:
        await typing.bunch("enter", "ctrl+u", "9", "escape", "x")
        assert typing.app.screen.query_one(LimitTable).is_open is False
        assert cast("PolicyScreen", typing.app.screen).unsaved_edits == 0


async def test_a_dialog_gets_the_keys_that_were_meant_for_it(typist: Callable[..., Any], source: Any) -> None:
    async with typist() as typing:
        await typing.bunch("x", "tab", "enter", "2")
        assert source.acts == [("stop", "s-41")]
        assert isinstance(typing.app.screen, RefusalsScreen)


async def test_a_dialog_of_a_worker_gets_them_as_well(typist: Callable[..., Any]) -> None:
    async with typist("3") as typing:
        await typing.bunch("right", "r", "tab", "enter", "down")
        screen = cast("PolicyScreen", typing.app.screen)
        assert isinstance(screen, PolicyScreen)
        assert screen.unsaved_edits == 0
        assert not screen.query_one(LimitTable).is_open


async def test_quitting_is_confirmed_by_one_bunch(typist: Callable[..., Any]) -> None:
    async with typist() as typing:
        await typing.bunch("q", "escape", "q", "tab", "enter")
        assert not typing.app.is_running


async def test_help_is_left_before_the_next_key(typist: Callable[..., Any]) -> None:
    async with typist() as typing:
        await typing.bunch("?", "j", "escape", "4", "?")
        assert isinstance(typing.app.screen, HelpScreen)
        assert isinstance(typing.app.screen_stack[0], LogScreen)


async def test_a_filter_of_refusals_is_typed_kept_and_left(typist: Callable[..., Any], source: Any) -> None:
    source.publish(*source.snapshot().admission.recent_refusals)
    async with typist() as typing:
        await typing.bunch("2", "/", "x", "ctrl+u", *"curl", "enter", "3", "2")
        screen = cast("RefusalsScreen", typing.app.screen)
        assert typing.field.value == "curl"
        assert screen.chosen is not None
        assert screen.chosen.client == "curl"


async def test_a_filter_of_the_log_is_typed_and_dropped(typist: Callable[..., Any], source: Any) -> None:
    source.publish(LogLine(time_s=0, level="info", source="api", message="hello"))
    async with typist() as typing:
        await typing.bunch("4", "/", *"hell", "enter", "l", "/", "o", "escape", "escape")
        assert isinstance(typing.app.screen, StreamsScreen)


async def test_enter_in_the_palette_takes_what_was_typed_and_nothing_found_before(typist: Callable[..., Any]) -> None:
    async with typist() as typing:
        await typing.bunch(":", *"view: log", "enter")
        assert isinstance(typing.app.screen, LogScreen)
        await typing.bunch("ctrl+p", *"server quit", "enter", "escape", "1")
        assert isinstance(typing.app.screen, StreamsScreen)


async def test_enter_in_the_palette_does_nothing_when_nothing_was_found(typist: Callable[..., Any]) -> None:
    async with typist() as typing:
        await typing.bunch(":", *"zzzzqq", "enter", "escape", "q")
        assert isinstance(typing.app.screen, QuitDialog)


async def test_input_that_never_rests_holds_up_keys_for_a_while_only(
    typist: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with typist() as typing:
        order = typing.app.key_order
        monkeypatch.setattr(order, "_is_calm", lambda: False)
        monkeypatch.setattr("console.key_order.LONGEST_WAIT_S", 0.05)
        await typing.bunch("v", "v", "2")
        assert isinstance(typing.app.screen, RefusalsScreen)
