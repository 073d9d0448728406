"""One stream on the whole screen: followed to its end, walked with arrows, stopped after a question."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from console.app import HomebaseApp
from console.screens.detail import DetailScreen
from console.screens.dialogs import ConfirmDialog

if TYPE_CHECKING:
    from tests.console.conftest import FakeSource, Samples

MakeApp = Callable[..., HomebaseApp]
Read = Callable[[Any], str]
Snap = Callable[[Any, str], None]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("child", [False, True], ids=["decode", "prefill"])
async def test_the_detail_screen_as_kept(
    make_app: MakeApp, source: FakeSource, snap: Snap, size: tuple[int, int], child: bool
) -> None:
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        await pilot.press(*(["j"] if child else []), "enter")
        await pilot.pause()
        app.tick()
        await pilot.pause()
        snap(app, f"detail-{'prefill' if child else 'decode'}")


@pytest.mark.parametrize("key", ["escape", "h", "left"])
async def test_it_is_left_by_several_keys(make_app: MakeApp, source: FakeSource, key: str) -> None:
    app = make_app(source)
    async with app.run_test() as pilot:
        await pilot.press("enter")
        assert isinstance(app.screen, DetailScreen)
        await pilot.press(key)
        assert not isinstance(app.screen, DetailScreen)


async def test_arrows_walk_the_streams(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test() as pilot:
        await pilot.press("enter")
        screen = app.screen
        assert isinstance(screen, DetailScreen)
        await pilot.press("down")
        assert screen.stream.id == "s-42"
        await pilot.press("j")
        assert screen.stream.id == "s-42"
        await pilot.press("k")
        assert screen.stream.id == "s-41"


async def test_it_stays_after_the_end_with_the_outcome(
    make_app: MakeApp, source: FakeSource, samples: Samples, read_screen: Read
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter")
        ended = msgspec.structs.replace(
            source.shown.streams[0],
            phase="finished",
            outcome="cancelled",
            outcome_detail="client left",
            finished_ago_s=1.0,
        )
        source.shown = samples.snapshot(ended)
        app.tick()
        await pilot.pause()
        assert "cancelled: client left" in read_screen(app)
        assert "x" not in app.screen.active_bindings
        source.shown = samples.empty()
        app.tick()
        await pilot.pause()
        assert "cancelled: client left" in read_screen(app)


async def test_a_stream_that_vanished_between_two_looks_is_called_over(
    make_app: MakeApp, source: FakeSource, samples: Samples, read_screen: Read
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter")
        source.shown = samples.empty()
        app.tick()
        await pilot.pause()
        assert "no longer listed" in read_screen(app)


@pytest.mark.parametrize("key", ["x", "ctrl+d", "delete"])
async def test_it_can_be_stopped_after_a_question(make_app: MakeApp, source: FakeSource, key: str) -> None:
    app = make_app(source)
    async with app.run_test() as pilot:
        await pilot.press("j", "enter", key)
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("tab", "enter")
        await app.workers.wait_for_complete()
        assert source.acts == [("stop", "s-42")]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_whose_key_it_came_with_is_told(
    make_app: MakeApp, source: FakeSource, read_screen: Read, size: tuple[int, int]
) -> None:
    streams = tuple(msgspec.structs.replace(stream, key="alice") for stream in source.shown.streams)
    source.change(streams=streams)
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        await pilot.press("enter")
        app.tick()
        await pilot.pause()
        assert re.search(r"key +alice", read_screen(app))
