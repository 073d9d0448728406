"""An open policy screen, and what a test does with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Button

from console.app import HomebaseApp
from console.screens.policy import PolicyScreen
from console.widgets.limit_field import LimitField
from console.widgets.limit_table import LimitTable
from console.widgets.lines import Lines
from server.policy import LimitValue, apply_changes, validate_policy

KEY = "policy.max_in_flight"
Read = Callable[[Any], str]


class Editor:
    """One open policy screen, and what a test does with it."""

    def __init__(self, app: HomebaseApp, pilot: Pilot[Any], source: Any, read: Read) -> None:
        self.app, self.pilot, self.source, self._read = app, pilot, source, read
        self.screen = cast("PolicyScreen", app.screen)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def type(self, text: str) -> None:
        """Open the field of the limit under the cursor and put a text in it, at once instead of key by key."""
        await self.pilot.press("enter")
        self.screen.query_one(LimitField).value = text
        await self.settle()

    async def settle(self) -> None:
        """Until nothing is under way, or a dialog waits for an answer."""
        await self.pilot.pause()
        for _ in range(40):
            if self.app.screen is not self.screen or all(worker.is_finished for worker in self.app.workers):
                break
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def tick(self) -> None:
        self.screen.refresh_view(self.source.snapshot())
        await self.settle()

    async def snap_sizes(self, snap: Callable[..., None], name: str) -> None:
        for width, height in ((200, 60), (120, 40), (80, 24)):
            await self.pilot.resize_terminal(width, height)
            await self.tick()
            snap(self.app, name)

    async def go_to(self, key: str) -> None:
        self.screen.query_one(LimitTable).go_to(key)
        await self.settle()

    @property
    def text(self) -> str:
        return self._read(self.app)

    @property
    def told(self) -> str:
        """What is said under the summary line."""
        return self._lines("#policy-told")

    @property
    def detail(self) -> str:
        """What is said of the limit under the cursor, line breaks taken out."""
        return self._lines("#policy-detail Lines")

    @property
    def diff(self) -> str:
        return self._lines("#policy-diff Lines")

    def _lines(self, selector: str) -> str:
        lines = self.screen.query_one(selector, Lines).lines
        return " ".join(" ".join("".join(text for text, _ in line) for line in lines).split())

    @property
    def save_button(self) -> Button:
        return self.screen.query_one("#policy-save", Button)

    @property
    def saved(self) -> list[Mapping[str, LimitValue]]:
        return [changes for act, changes in self.source.acts if act == "save"]

    def change_outside(self, **values: LimitValue) -> None:
        """The server has read a file that somebody else edited; keys by their last name."""
        changes = {
            next(k for k in self.screen.editing.state.origins if k.endswith(f".{n}")): v for n, v in values.items()
        }
        policy = validate_policy(apply_changes(msgspec.to_builtins(self.source.state.policy), changes))
        self.source.state = msgspec.structs.replace(self.source.state, policy=policy, etag="etag-outside")


@pytest.fixture
def open_editor(
    monkeypatch: pytest.MonkeyPatch, make_app: Callable[..., HomebaseApp], source: Any, read_screen: Read
) -> Callable[..., Any]:
    monkeypatch.setattr(HomebaseApp, "DEFAULT_MODE", "policy")

    @asynccontextmanager
    async def open_it(size: tuple[int, int] = (120, 40), **options: Any) -> AsyncGenerator[Editor]:
        app = make_app(source, **options)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            editor = Editor(app, pilot, source, read_screen)
            await editor.go_to(KEY)
            await editor.tick()
            yield editor

    return open_it
