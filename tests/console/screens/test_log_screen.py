"""The log: one timeline, followed or held, filtered, copied, and never cleared by a tick."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import HomebaseApp
from console.screens.log import LogScreen
from console.widgets.lines import Lines
from console.widgets.log_view import LogView
from server.events import LogLine, ModelStateChanged, PolicyChanged, PolicyProblem

NOW_S = 1_796_040_131.0
MESSAGES = ("admitted opencode as parent", "step took 0.41 s", "sent \x1b[31mred\x1b[0m bytes", "out of memory")


class Log:
    """One open log, and what a test does with it."""

    def __init__(self, app: HomebaseApp, pilot: Pilot[Any], source: Any, read: Callable[[Any], str]) -> None:
        self.app, self.pilot, self.source, self._read = app, pilot, source, read
        self.screen = cast("LogScreen", app.screen)
        self.view = self.screen.query_one(LogView)

    async def publish(self, *notices: Any) -> None:
        self.source.publish(*notices)
        await self.tick()

    async def tick(self) -> None:
        self.screen.refresh_view(self.source.snapshot())
        await self.settle()

    async def settle(self) -> None:
        await self.pilot.pause()
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    @property
    def text(self) -> str:
        return self._read(self.app)

    @property
    def head(self) -> str:
        return "".join(text for text, _ in self.screen.query_one("#log-head", Lines).lines[0])

    @property
    def chosen(self) -> str:
        entry = self.view.chosen
        return entry.text if entry else ""


def lines(count: int, start: int = 0, level: Any = "info") -> list[LogLine]:
    return [
        LogLine(time_s=NOW_S + start + i, level=level, source="engine", message=f"line {start + i}")
        for i in range(count)
    ]


@pytest.fixture
def open_log(
    monkeypatch: pytest.MonkeyPatch,
    make_app: Callable[..., HomebaseApp],
    source: Any,
    read_screen: Callable[[Any], str],
) -> Callable[..., Any]:
    monkeypatch.setattr(HomebaseApp, "DEFAULT_MODE", "log")

    @asynccontextmanager
    async def open_it(*notices: Any, size: tuple[int, int] = (100, 30), **options: Any) -> AsyncGenerator[Log]:
        source.publish(*notices)
        app = make_app(source, **options)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            log = Log(app, pilot, source, read_screen)
            await log.tick()
            yield log

    return open_it


async def test_an_empty_log_says_what_will_appear(open_log: Any) -> None:
    async with open_log() as log:
        assert "Nothing logged yet" in log.text
        await log.press("y", "up", "down", "G", "g", "f", "l")
        assert log.view.chosen is None


async def test_all_kinds_of_notices_are_in_one_timeline(open_log: Any, samples: Any) -> None:
    async with open_log(
        *lines(1),
        samples.refused(),
        PolicyChanged(NOW_S, "file", (("policy.max_in_flight", "2", "1"),)),
        PolicyProblem(NOW_S, "homebase.toml:3: nonsense."),
        ModelStateChanged(NOW_S, "ready", "nano"),
    ) as log:
        for words in ("● info  engine", "▲ warn  refused", "● info  policy", "✕ error policy", "● info  model"):
            assert words in log.text


async def test_the_newest_line_is_followed(open_log: Any) -> None:
    async with open_log(*lines(60)) as log:
        assert "line 59" in log.text
        assert "● following" in log.head
        await log.publish(*lines(5, start=60))
        assert log.chosen == "line 64"


async def test_moving_up_holds_the_view_and_counts_what_comes(open_log: Any) -> None:
    async with open_log(*lines(60)) as log:
        await log.press("up", "up", "up")
        assert log.chosen == "line 56"
        await log.publish(*lines(12, start=60))
        assert log.chosen == "line 56"
        assert "line 60" not in log.text
        assert "▲ 12 new lines below" in log.head
        await log.press("G")
        assert log.chosen == "line 71"
        assert "● following" in log.head


async def test_following_can_be_switched(open_log: Any) -> None:
    async with open_log(*lines(60)) as log:
        await log.press("f")
        await log.publish(*lines(1, start=60))
        assert log.chosen == "line 59"
        assert "▲ 1 new line below" in log.head
        await log.press("f")
        assert log.chosen == "line 60"


async def test_moving_down_onto_the_newest_line_follows_again(open_log: Any) -> None:
    async with open_log(*lines(60)) as log:
        await log.press("up", "down")
        assert log.view.is_following
        await log.press("g")
        assert log.chosen == "line 0"
        await log.press("pagedown")
        assert not log.view.is_following


async def test_a_held_view_stays_on_its_line_when_old_ones_fall_out(open_log: Any) -> None:
    async with open_log(*lines(3000)) as log:
        await log.press("pageup", "pageup")
        held = log.chosen
        await log.publish(*lines(700, start=3000))
        assert log.chosen == held
        assert held in log.text


async def test_levels_hide_the_less_grave(open_log: Any) -> None:
    notices = [*lines(1, 0, "debug"), *lines(1, 1, "info"), *lines(1, 2, "warning"), *lines(1, 3, "error")]
    async with open_log(*notices) as log:
        seen: list[int] = []
        for _ in range(4):
            seen.append(sum(f"line {i}" in log.text.split("╰")[0] for i in range(4)))
            await log.press("l")
        assert seen == [3, 2, 1, 4]


async def test_the_filter_narrows_as_it_is_typed_and_esc_drops_it(open_log: Any) -> None:
    async with open_log(*lines(30)) as log:
        await log.press("slash", "2", "7")
        assert log.head.startswith(" 1 line")
        assert "29 hidden" in log.head
        await log.press("enter")
        assert log.app.focused is log.view
        assert "/ 27" in log.head
        await log.publish(*lines(1, start=270))
        assert log.chosen == "line 270"
        await log.press("escape")
        assert log.head.startswith(" 31 lines")
        assert log.screen.query_one("#log-filter", Input).value == ""
        assert log.app.screen is log.screen
        await log.press("escape")
        assert log.app.screen is not log.screen


async def test_letters_typed_into_the_filter_are_not_keys(open_log: Any) -> None:
    async with open_log(*lines(5)) as log:
        await log.press("slash", "l", "f", "y", "q", "1")
        assert log.screen.query_one("#log-filter", Input).value == "lfyq1"
        assert "No line passes the filter" in log.text
        assert log.app.screen is log.screen


async def test_the_chosen_line_is_shown_whole_and_copied(open_log: Any) -> None:
    long = LogLine(time_s=NOW_S, level="error", source="api", message="why " * 30 + "END")
    async with open_log(long) as log:
        assert "END" in log.text
        await log.press("y")
        assert log.app.clipboard.startswith("12:02:11 error api: why why")
        assert log.app.clipboard.endswith("END")


async def test_foreign_text_cannot_control_the_terminal(open_log: Any) -> None:
    message = "\x1b[2J\x1b]0;owned\x07 [red]markup[/] \r\n 日本語 \u202e"
    async with open_log(LogLine(time_s=NOW_S, level="info", source="api", message=message)) as log:
        assert not any(ord(sign) < 32 and sign != "\n" for sign in log.text)
        assert "\\x1b[2J" in log.text
        assert "[red]markup[/]" in log.text


async def test_a_tick_without_news_draws_nothing(open_log: Any) -> None:
    async with open_log(*lines(60)) as log:
        before = log.view.lines
        await log.tick()
        assert log.view.lines is before


async def test_a_click_chooses_and_the_wheel_scrolls(open_log: Any) -> None:
    async with open_log(*lines(60)) as log:
        await log.pilot.click(LogView, offset=(20, 2))
        await log.settle()
        first = log.chosen
        assert first != "line 59"
        assert not log.view.is_following


async def test_looks(open_log: Any, samples: Any, snap: Callable[..., None]) -> None:
    notices = [
        LogLine(time_s=NOW_S + i, level="info" if i % 4 else "warning", source=("api", "engine")[i % 2], message=m)
        for i, m in enumerate(MESSAGES * 12)
    ]
    async with open_log(*notices, samples.refused()) as log:
        for width, height in ((200, 60), (120, 40), (80, 24)):
            await log.pilot.resize_terminal(width, height)
            await log.tick()
            snap(log.app, "log")


async def test_looks_in_ascii(open_log: Any, samples: Any) -> None:
    async with open_log(*lines(3), samples.refused(), ascii=True) as log:
        assert log.text.isascii()
