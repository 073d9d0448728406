"""The policy editor over the real store: what is typed on the screen is what is on the disk afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from console.app import HomebaseApp
from console.screens.dialogs import ConflictDialog
from console.screens.policy import PolicyScreen
from console.widgets.limit_field import LimitField
from console.widgets.limit_table import LimitTable
from console.widgets.lines import Lines
from server.policy import LimitValue
from server.policy_store import PolicyDraft, PolicyState, PolicyStore

KEY = "policy.max_in_flight"
FILE = """\
# Ada's limits.
[policy]
max_in_flight = 2   # parent + 1
max_context_tokens = 32_768

[server]
api_key = "hunter2"
"""


class StoreSource:
    """A canned server with a real policy store behind it."""

    def __init__(self, canned: Any, store: PolicyStore) -> None:
        self._canned, self.store = canned, store
        self.state = store.state
        self.snapshot, self.notices, self.stop = canned.snapshot, canned.notices, canned.stop

    def policy(self) -> PolicyState:
        return self.store.state

    async def draft(self, changes: Mapping[str, LimitValue]) -> PolicyDraft:
        return await asyncio.to_thread(self.store.draft, changes)

    async def save(self, changes: Mapping[str, LimitValue], etag: str) -> PolicyState:
        return await asyncio.to_thread(self.store.edit, changes, etag)

    async def undo(self) -> PolicyState:
        return await asyncio.to_thread(self.store.undo)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "homebase.toml"
    file.write_text(FILE, encoding="utf-8")
    return file


@pytest.fixture
def edit(
    path: Path, source: Any, monkeypatch: pytest.MonkeyPatch, make_app: Callable[..., HomebaseApp]
) -> Callable[[Callable[[PolicyScreen, Any], Any]], Any]:
    """Opens the editor over `path` and hands the screen and a pilot to a test's steps."""
    monkeypatch.setattr(HomebaseApp, "DEFAULT_MODE", "policy")

    async def run(steps: Callable[[PolicyScreen, Any], Any], **overrides: tuple[LimitValue, str]) -> None:
        store = PolicyStore(path, b"", {key.replace("__", "."): value for key, value in overrides.items()})
        store.load()
        app = make_app(StoreSource(source, store))
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            screen = app.screen
            assert isinstance(screen, PolicyScreen)
            await steps(screen, pilot)

    return run


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    path.unlink()


async def settle(pilot: Any) -> None:
    """Until the store has answered, or a dialog waits for the operator."""
    await pilot.pause()
    for _ in range(200):
        is_asking = isinstance(pilot.app.screen, ConflictDialog)
        if is_asking or all(worker.is_finished for worker in pilot.app.workers):
            break
        await pilot.pause(0.01)
    await pilot.pause()


async def set_limit(screen: PolicyScreen, pilot: Any, key: str, text: str) -> None:
    screen.query_one(LimitTable).go_to(key)
    await pilot.press("enter")
    screen.query_one(LimitField).value = text
    await settle(pilot)
    await pilot.press("escape")


def read_lines(screen: PolicyScreen, selector: str) -> str:
    lines = screen.query_one(selector, Lines).lines
    return "\n".join("".join(text for text, _ in line) for line in lines)


async def test_a_save_changes_one_line_and_keeps_its_comment(edit: Any, path: Path) -> None:
    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        await set_limit(screen, pilot, KEY, "1")
        assert "-max_in_flight = 2   # parent + 1\n+max_in_flight = 1   # parent + 1" in read_lines(
            screen, "#policy-diff Lines"
        )
        assert read(path) == FILE
        await pilot.press("s")
        await settle(pilot)
        assert read(path) == FILE.replace("max_in_flight = 2", "max_in_flight = 1")
        assert "in force now" in read_lines(screen, "#policy-told")
        await pilot.press("u")
        await settle(pilot)
        assert read(path) == FILE

    await edit(steps)


async def test_where_a_value_comes_from_is_its_line_in_the_file(edit: Any) -> None:
    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        screen.query_one(LimitTable).go_to(KEY)
        await settle(pilot)
        assert "homebase.toml line 3" in read_lines(screen, "#policy-detail Lines")

    await edit(steps)


async def test_an_edit_of_another_key_made_in_an_editor_survives_the_save(edit: Any, path: Path) -> None:
    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        await set_limit(screen, pilot, KEY, "1")
        outside = FILE.replace("32_768", "4_096")
        write(path, outside)
        await pilot.press("s")
        await settle(pilot)
        assert read(path) == outside.replace("max_in_flight = 2", "max_in_flight = 1")

    await edit(steps)


@pytest.mark.parametrize(
    ("keys", "kept"), [(("right", "right", "enter"), 1), (("right", "enter"), 7), (("escape",), 7)]
)
async def test_the_same_key_edited_in_an_editor_is_asked_about(
    edit: Any, path: Path, keys: tuple[str, ...], kept: int
) -> None:
    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        await set_limit(screen, pilot, KEY, "1")
        write(path, FILE.replace("max_in_flight = 2", "max_in_flight = 7"))
        await pilot.press("s")
        await settle(pilot)
        assert isinstance(pilot.app.screen, ConflictDialog)
        await pilot.press(*keys)
        await settle(pilot)
        assert read(path) == FILE.replace("max_in_flight = 2", f"max_in_flight = {kept}")

    await edit(steps)


async def test_a_file_broken_meanwhile_is_left_alone(edit: Any, path: Path) -> None:
    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        await set_limit(screen, pilot, KEY, "1")
        broken = FILE.replace("max_in_flight = 2", "max_in_flight = ")
        write(path, broken)
        await pilot.press("s")
        await settle(pilot)
        assert read(path) == broken
        told = read_lines(screen, "#policy-told")
        assert "homebase.toml:3" in told
        assert screen.unsaved_edits == 1
        write(path, FILE)
        await asyncio.to_thread(pilot.app.source.store.reload)
        screen.refresh_view(pilot.app.source.snapshot())
        await pilot.press("s")
        await settle(pilot)
        assert read(path) == FILE.replace("max_in_flight = 2", "max_in_flight = 1")

    await edit(steps)


async def test_a_flag_stays_in_force_and_an_edit_of_the_file_under_it_is_not_lost(edit: Any, path: Path) -> None:
    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        await set_limit(screen, pilot, "server.port", "12000")
        assert "--port 9000 goes before server.port" in read_lines(screen, "#policy-diff Lines")
        outside = FILE.replace("[server]", "[server]\nport = 8000")
        write(path, outside)
        await pilot.press("s")
        await settle(pilot)
        assert read(path) == outside
        assert "8000 there and 12000 here" in read_lines(screen, "#policy-told").replace("\n", " ")
        await pilot.press("s")
        await settle(pilot)
        assert read(path) == outside.replace("8000", "12000")
        assert "--port of this run stays in force" in read_lines(screen, "#policy-told")

    await edit(steps, server__port=(9000, "--port"))


async def test_no_file_yet_is_said_and_saving_creates_it(edit: Any, path: Path) -> None:
    remove(path)

    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        assert "no file yet: saving creates it" in read_lines(screen, "#policy-summary")
        await set_limit(screen, pilot, KEY, "1")
        await pilot.press("s")
        await settle(pilot)
        assert "max_in_flight = 1" in read(path)

    await edit(steps)


async def test_a_file_that_is_gone_is_written_anew_by_the_next_save(edit: Any, path: Path) -> None:
    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        await set_limit(screen, pilot, KEY, "1")
        remove(path)
        await asyncio.to_thread(pilot.app.source.store.reload)
        screen.refresh_view(pilot.app.source.snapshot())
        await settle(pilot)
        assert "homebase.toml is gone" in read_lines(screen, "#policy-told")
        assert "not valid" not in read_lines(screen, "#policy-summary")
        await pilot.press("s")
        await settle(pilot)
        assert read(path) == FILE.replace("max_in_flight = 2", "max_in_flight = 1")
        assert "gone" not in read_lines(screen, "#policy-told")

    await edit(steps)


async def test_a_server_open_to_other_machines_without_a_key_is_warned_of(edit: Any, path: Path) -> None:
    write(path, FILE.replace('api_key = "hunter2"', 'host = "0.0.0.0"\nallow_unauthenticated = true'))

    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        assert "▲ server.host 0.0.0.0 answers other machines" in read_lines(screen, "#policy-told")

    await edit(steps)


async def test_the_key_of_the_server_is_nowhere_on_the_screen(edit: Any, read_screen: Callable[[Any], str]) -> None:
    async def steps(screen: PolicyScreen, pilot: Any) -> None:
        await set_limit(screen, pilot, "server.api_key", "swordfish")
        shown = read_screen(pilot.app)
        assert "hunter2" not in shown
        assert "swordfish" not in shown

    await edit(steps)
