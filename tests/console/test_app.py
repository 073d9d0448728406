"""The application: places, themes, copying, stopping, quitting, news, and terminals of any size."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from textual.widgets import Button

from console.app import HomebaseApp
from console.palette import ConsoleCommands
from console.screens.detail import DetailScreen
from console.screens.dialogs import ConfirmDialog, QuitDialog
from console.screens.help import HelpScreen
from console.screens.log import LogScreen
from console.screens.policy import PolicyScreen
from console.screens.refusals import RefusalsScreen
from console.screens.small import SmallScreen
from console.screens.streams import StreamsScreen
from server.errors import PolicyConflict, PolicyUnwritable
from server.events import ModelStateChanged, PolicyChanged, PolicyProblem
from server.policy import apply_changes, validate_policy
from server.snapshot import Snapshot

if TYPE_CHECKING:
    from tests.console.conftest import FakeSource, Samples

MakeApp = Callable[..., HomebaseApp]
MakeSource = Callable[[Snapshot], "FakeSource"]
Read = Callable[[Any], str]


def toasts(app: HomebaseApp) -> list[str]:
    return [notification.message for notification in app._notifications]


@pytest.mark.parametrize(
    ("key", "screen"),
    [("1", StreamsScreen), ("2", RefusalsScreen), ("3", PolicyScreen), ("4", LogScreen), ("e", PolicyScreen)],
)
async def test_number_keys_switch_screens(make_app: MakeApp, source: FakeSource, key: str, screen: type) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2" if key == "1" else "1", key)
        assert isinstance(app.screen, screen)


@pytest.mark.parametrize("place", ["refusals", "policy", "log"])
async def test_a_tick_while_a_screen_is_being_opened_does_no_harm(
    make_app: MakeApp, source: FakeSource, place: str
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        app.action_show_place(place)
        assert not app.screen.is_mounted
        app.tick()
        await pilot.pause()
        app.tick()
        assert app.screen.is_mounted


async def test_a_number_leaves_what_is_open_over_a_screen(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("enter")
        assert isinstance(app.screen, DetailScreen)
        await pilot.press("2")
        assert isinstance(app.screen, RefusalsScreen)
        await pilot.press("1")
        assert isinstance(app.screen, StreamsScreen)


async def test_the_key_bar_can_be_clicked(make_app: MakeApp, source: FakeSource, read_screen: Read) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        bar = read_screen(app).splitlines()[-1]
        await pilot.click("KeyBar", offset=(bar.index("Refusals"), 0))
        assert isinstance(app.screen, RefusalsScreen)
        await pilot.pause()
        bar = read_screen(app).splitlines()[-1]
        await pilot.click("KeyBar", offset=(bar.index("Help"), 0))
        assert isinstance(app.screen, HelpScreen)


@pytest.mark.parametrize("key", ["question_mark", "f1"])
async def test_help_names_the_keys_and_thresholds(
    make_app: MakeApp, source: FakeSource, read_screen: Read, key: str
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.press(key)
        await pilot.pause()
        text = read_screen(app)
        assert "x  Del  ^d" in text
        assert "End the chosen stream" in text
        await pilot.press("escape")
        assert isinstance(app.screen, StreamsScreen)


async def test_the_theme_key_walks_all_themes_and_keeps_the_choice(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test() as pilot:
        seen = {app.theme}
        for _ in range(len(app.theme_names) - 1):
            await pilot.press("t")
            await app.workers.wait_for_complete()
            seen.add(app.theme)
            assert source.state.policy.console.theme == app.theme
        assert seen == set(app.theme_names)
        assert source.acts[-1] == ("save", {"console.theme": app.theme})


@pytest.mark.parametrize(
    "failure", [PolicyUnwritable("the folder is read-only."), PolicyConflict("homebase.toml changed.")]
)
async def test_a_theme_that_was_not_saved_is_not_called_saved(
    make_app: MakeApp, source: FakeSource, failure: Exception
) -> None:
    source.fails = failure
    app = make_app(source)
    async with app.run_test() as pilot:
        before = app.theme
        await pilot.press("t")
        await app.workers.wait_for_complete()
        assert app.theme != before
        assert "for this run only" in toasts(app)[-1]
        assert str(failure) in toasts(app)[-1]
        app.tick()
        assert app.theme != before


async def test_a_theme_set_in_the_policy_is_taken_at_once(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test() as pilot:
        await source.save({"console.theme": "homebase-light"}, source.state.etag)
        app.tick()
        assert app.theme == "homebase-light"
        await source.save({"console.theme": "no-such"}, source.state.etag)
        app.tick()
        await pilot.pause()
        assert app.theme == "homebase-light"
        assert "'no-such' does not exist" in toasts(app)[-1]


async def test_an_unknown_theme_at_the_start_falls_back_and_is_told(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source, theme="nonsense")
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.theme == "homebase-dark"
        assert "nonsense" in toasts(app)[0]


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("y", "curl -N http://127.0.0.1:11234/v1/chat"),
        ("Y", "http://127.0.0.1:11234/v1"),
        ("f8", "http://127.0.0.1:11234/v1"),
    ],
)
async def test_copying_claims_no_more_than_is_known(
    make_app: MakeApp, source: FakeSource, monkeypatch: pytest.MonkeyPatch, key: str, wanted: str
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    app = make_app(source)
    async with app.run_test() as pilot:
        await pilot.press(key)
        assert app.clipboard.startswith(wanted)
        assert "not every terminal takes it" in toasts(app)[-1]


@pytest.mark.parametrize("key", ["x", "ctrl+d", "delete"])
async def test_stopping_asks_first_and_cancel_is_in_focus(make_app: MakeApp, source: FakeSource, key: str) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert isinstance(app.screen, ConfirmDialog)
        assert isinstance(app.focused, Button)
        assert app.focused.id == "cancel"
        await pilot.press("enter")
        assert source.acts == []
        await pilot.press(key, "tab", "enter")
        await app.workers.wait_for_complete()
        assert source.acts == [("stop", "s-41")]
        assert toasts(app)[-1] == "s-41 is being ended; its client is told."


async def test_a_stop_that_came_too_late_or_broke_is_told(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test() as pilot:
        source.stops = False
        await pilot.press("x", "tab", "enter")
        await app.workers.wait_for_complete()
        assert toasts(app)[-1] == "s-41 was over already."
        source.fails = RuntimeError("wires\x1b[2J crossed")
        await pilot.press("x", "tab", "enter")
        await app.workers.wait_for_complete()
        assert toasts(app)[-1] == "RuntimeError: wires\\x1b[2J crossed"
        assert app.is_running


@pytest.mark.parametrize("key", ["q", "ctrl+q"])
async def test_quitting_with_streams_open_asks(make_app: MakeApp, source: FakeSource, key: str) -> None:
    app = make_app(source)
    async with app.run_test() as pilot:
        await pilot.press(key)
        assert isinstance(app.screen, QuitDialog)
        await pilot.press("ctrl+q")
        assert len(app.screen_stack) == 2
        await pilot.press("escape")
        assert app.is_running
        assert not app._exit
        await pilot.press(key, "tab", "enter")
        assert app._exit


@pytest.mark.parametrize("key", ["q", "ctrl+q"])
async def test_quitting_an_idle_server_just_quits(
    make_app: MakeApp, make_source: MakeSource, samples: Samples, key: str
) -> None:
    app = make_app(make_source(samples.with_finished()))
    app.source.change(streams=(samples.finished(),))  # type: ignore[attr-defined]
    async with app.run_test() as pilot:
        await pilot.press(key)
        assert app._exit


async def test_news_pop_up_once_and_old_news_do_not(make_app: MakeApp, source: FakeSource) -> None:
    change = PolicyChanged(time_s=0, origin="file", changes=(("policy.max_in_flight", "2", "1"),))
    source.publish(change)
    app = make_app(source)
    async with app.run_test() as pilot:
        app.tick()
        await pilot.pause()
        assert toasts(app) == []
        source.publish(change)
        app.tick()
        app.tick()
        await pilot.pause()
        assert toasts(app) == ["homebase.toml changed outside, in force: max_in_flight 2 → 1"]


async def test_news_from_while_the_program_started_are_not_lost(make_app: MakeApp, source: FakeSource) -> None:
    started_s = source.snapshot().time_s - 2.0
    source.publish(ModelStateChanged(time_s=started_s, state="failed", detail="no tensors"))
    app = make_app(source)
    async with app.run_test() as pilot:
        app.tick()
        await pilot.pause()
        assert toasts(app) == ["The model could not be loaded: no tensors"]


async def test_an_outside_edit_is_told_once_where_the_policy_is_in_front(
    make_app: MakeApp, source: FakeSource, read_screen: Read
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("3")
        change_outside(source, 6)
        app.tick()
        await pilot.pause()
        assert toasts(app) == []
        assert read_screen(app).count("max_in_flight 2 → 6") == 1
        await pilot.press("1")
        change_outside(source, 2)
        app.tick()
        await pilot.pause()
        assert toasts(app) == ["homebase.toml changed outside, in force: max_in_flight 6 → 2"]


@pytest.mark.parametrize(("place", "is_line"), [("3", True), ("1", True), ("2", False)])
async def test_a_file_that_breaks_is_told_once(
    make_app: MakeApp, source: FakeSource, read_screen: Read, place: str, is_line: bool
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(place)
        problem = "homebase.toml:3: nonsense."
        source.state = msgspec.structs.replace(source.state, problem=problem)
        source.change(policy=msgspec.structs.replace(source.snapshot().policy, problem=problem))
        source.publish(PolicyProblem(time_s=0, message=problem))
        app.tick()
        await pilot.pause()
        assert len(toasts(app)) == (0 if is_line else 1)
        assert not is_line or read_screen(app).count(problem) == 1


def change_outside(source: FakeSource, number: int) -> None:
    """Someone edits the file: the state moves and a notice says so."""
    before = source.state.policy
    policy = validate_policy(apply_changes(msgspec.to_builtins(before), {"policy.max_in_flight": number}))
    source.state = msgspec.structs.replace(source.state, policy=policy, etag=f"etag-{number}")
    change = ("policy.max_in_flight", str(before.policy.max_in_flight), str(number))
    source.publish(PolicyChanged(time_s=0, origin="file", changes=(change,)))


async def test_a_theme_that_cannot_be_used_is_in_the_log_too(
    make_app: MakeApp, source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(source, theme="nope")
    async with app.run_test() as pilot:
        await pilot.pause()
        assert "theme 'nope' does not exist" in caplog.text


@pytest.mark.parametrize("place", ["3", "4"])
async def test_the_palette_lists_no_keys_that_only_move(make_app: MakeApp, source: FakeSource, place: str) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(place)
        await pilot.pause()
        names = {command.name for command in ConsoleCommands(app.screen)._commands()}
        assert {"view: Streams", "server: Quit"} <= names
        assert not {"log: Up", "log: Page down", "policy: Down", "policy: First limit"} & names


@pytest.mark.parametrize("key", ["colon", "ctrl+p"])
async def test_the_palette_finds_and_runs_commands(make_app: MakeApp, source: FakeSource, key: str) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(key)
        await pilot.press(*"viewlog")
        await app.workers.wait_for_complete()
        await pilot.pause(0.3)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, LogScreen)


async def test_the_palette_leaves_out_what_is_impossible(
    make_app: MakeApp, source: FakeSource, samples: Samples
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        names = [hit.text async for hit in ConsoleCommands(app.screen).discover()]
        assert "stream: Stop…" in names
        assert "stream: Stop s-42 (opencode, child)" in names
        assert "theme: homebase-light" in names
        assert len(names) == len(set(names))
        source.shown = samples.empty()
        app.tick()
        names = [hit.text async for hit in ConsoleCommands(app.screen).discover()]
        assert not any(name.startswith("stream:") for name in names if name)


@pytest.mark.parametrize(("width", "height"), [(59, 24), (80, 15), (20, 5), (1, 1)])
async def test_a_tiny_terminal_is_told_and_recovers(
    make_app: MakeApp, source: FakeSource, read_screen: Read, width: int, height: int
) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        app.tick()
        await pilot.pause()
        before = read_screen(app)
        await pilot.resize_terminal(width, height)
        await pilot.pause()
        assert isinstance(app.screen, SmallScreen)
        app.tick()
        if width >= 23 and height >= 2:
            assert f"needs 60x16, have {width}x{height}" in read_screen(app)
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert isinstance(app.screen, StreamsScreen)
        app.tick()
        await pilot.pause()
        assert read_screen(app) == before


async def test_a_dialog_survives_a_tiny_terminal(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("x")
        await pilot.resize_terminal(30, 10)
        await pilot.pause()
        assert isinstance(app.screen, SmallScreen)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("escape")
        assert isinstance(app.screen, StreamsScreen)


async def test_a_storm_of_sizes_leaves_no_trace(make_app: MakeApp, source: FakeSource, read_screen: Read) -> None:
    app = make_app(source)
    sizes = random.Random(7)
    async with app.run_test(size=(120, 40)) as pilot:
        app.tick()
        await pilot.pause()
        before = read_screen(app)
        for step in range(40):
            await pilot.resize_terminal(sizes.randint(1, 220), sizes.randint(1, 70))
            app.tick()
            if step == 20:
                await pilot.press("2", "1")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        app.tick()
        await pilot.pause()
        assert read_screen(app) == before


async def test_the_timer_follows_the_source(source: FakeSource, samples: Samples, read_screen: Read) -> None:
    from console.themes import load_themes

    policy = msgspec.structs.replace(source.state.policy.console, refresh_hz=10.0)
    app = HomebaseApp(source, themes=load_themes(), policy=policy, clock=lambda: 5_000.2)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        source.shown = samples.snapshot(samples.stream(client="newcomer"))
        await pilot.pause(0.4)
        assert "newcomer" in read_screen(app)


async def test_every_screen_can_be_walked_without_a_mouse(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        for key in "1234":
            await pilot.press(key)
            await pilot.pause()
            assert app.focused is not None
            assert app.focused.has_focus
