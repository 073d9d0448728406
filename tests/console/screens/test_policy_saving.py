"""The policy editor: saving, undoing, and changes of the file made elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from console.screens.dialogs import ConfirmDialog, ConflictDialog
from console.widgets.limit_field import LimitField
from server.errors import PolicyConflict, PolicyInvalid, PolicyUnwritable
from server.policy import LimitValue

KEY = "policy.max_in_flight"


async def test_saving_writes_and_says_that_it_is_in_force(open_editor: Any) -> None:
    async with open_editor() as editor:
        for value, key in ((1, "s"), (3, "f2"), (4, "ctrl+s")):
            await editor.type(str(value))
            await editor.press("escape", key)
            assert editor.saved[-1] == {KEY: value}
            assert editor.told == f"● max_in_flight = {value} saved to homebase.toml, in force now"
            assert editor.screen.unsaved_edits == 0
            assert "Nothing to save" in editor.diff


async def test_the_save_button_can_be_clicked(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("1")
        await editor.pilot.click("#policy-save")
        await editor.settle()
        assert editor.saved == [{KEY: 1}]


async def test_a_save_that_waits_for_the_next_start_says_so(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.go_to("server.port")
        await editor.type("12000")
        await editor.press("f2")
        assert editor.told == "● port = 12000 saved to homebase.toml, in force at the next start"


async def test_a_save_under_a_flag_says_that_the_flag_stays_in_force(open_editor: Any, source: Any) -> None:
    async with open_editor() as editor:
        await editor.go_to("server.port")
        save = source.save

        async def save_under_flag(changes: Mapping[str, LimitValue], etag: str) -> Any:
            state = await save(changes, etag)
            source.state = msgspec.structs.replace(state, origins={**state.origins, "server.port": "--port"})
            return source.state

        source.save = save_under_flag
        await editor.type("12000")
        await editor.press("f2")
        assert editor.told == "● port = 12000 saved to homebase.toml; --port of this run stays in force"


async def test_saved_is_not_said_before_the_write_returned(open_editor: Any, source: Any) -> None:
    async with open_editor() as editor:
        written = asyncio.Event()
        save = source.save

        async def slow_save(changes: Mapping[str, LimitValue], etag: str) -> Any:
            await written.wait()
            return await save(changes, etag)

        source.save = slow_save
        await editor.type("1")
        await editor.press("f2")
        assert "saved" not in editor.told
        assert editor.screen.unsaved_edits == 1
        await editor.press("f2")
        written.set()
        await editor.settle()
        assert "saved to homebase.toml" in editor.told
        assert editor.saved == [{KEY: 1}]


async def test_nothing_to_save_is_said(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.press("s")
        assert editor.saved == []
        assert "nothing to save" in editor.told


async def test_a_failed_save_is_one_sentence_and_keeps_the_draft(open_editor: Any, source: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        for error in (PolicyUnwritable("homebase.toml cannot be written."), PolicyInvalid("line 3: nonsense.", line=3)):
            source.fails = error
            await editor.press("f2")
            assert f"Not saved: {error}" in editor.told
            assert editor.screen.editing.changes == {KEY: 4}
        source.fails = None
        await editor.press("s")
        assert "saved to homebase.toml" in editor.told


async def test_a_bug_in_saving_is_told_and_the_console_goes_on(open_editor: Any, source: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        source.fails = OSError("the disk is on fire")
        await editor.press("f2")
        assert "the disk is on fire" in editor.told
        assert editor.screen.editing.changes == {KEY: 4}
        assert not editor.save_button.disabled


async def test_undo_takes_the_last_save_back(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.press("u")
        assert "no save to undo" in editor.told
        await editor.type("1")
        await editor.press("escape", "s", "u")
        assert ("undo", None) in editor.source.acts
        assert editor.told == "● Last save undone in homebase.toml: max_in_flight 1 → 2"
        assert editor.screen.editing.current(KEY) == 2


async def test_an_undo_that_fails_is_told(open_editor: Any, source: Any) -> None:
    async with open_editor() as editor:
        await editor.type("1")
        await editor.press("escape", "s")
        source.fails = PolicyConflict("homebase.toml changed since the last save.")
        await editor.press("u")
        assert "Not undone: homebase.toml changed since the last save." in editor.told


async def test_revert_asks_and_brings_back_what_is_in_force(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.press("escape", "r")
        assert isinstance(editor.app.screen, ConfirmDialog)
        await editor.press("enter")
        assert editor.screen.unsaved_edits == 1
        await editor.press("r", "right", "enter")
        assert editor.screen.unsaved_edits == 0
        assert "← was" not in editor.text
        assert editor.saved == []


async def test_one_edit_can_be_dropped(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.press("down", "down")
        await editor.type("4096")
        await editor.press("escape", "x")
        assert editor.screen.editing.changes == {KEY: 4}
        assert "4096" in editor.told


async def test_edits_survive_leaving_the_screen(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.press("escape", "1")
        assert editor.app.screen is not editor.screen
        assert editor.screen.unsaved_edits == 1
        await editor.press("3")
        assert editor.app.screen is editor.screen
        assert "▲ 1 not saved" in editor.text


async def test_a_change_elsewhere_is_taken_over_and_told(open_editor: Any) -> None:
    async with open_editor() as editor:
        editor.change_outside(max_in_flight=3)
        await editor.tick()
        assert editor.screen.editing.current(KEY) == 3
        assert "homebase.toml changed elsewhere, in force now: max_in_flight 2 → 3" in editor.told


async def test_a_change_elsewhere_of_the_same_limit_is_shown_at_once(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        editor.change_outside(max_in_flight=3)
        await editor.tick()
        assert "▲ file says 3" in editor.text
        assert "▲ 1 in conflict" in editor.text
        assert editor.screen.query_one(LimitField).value == "4"


async def test_a_conflict_that_is_not_answered_saves_nothing_and_keeps_the_draft(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        editor.change_outside(max_in_flight=3)
        await editor.press("f2")
        for answer in ("enter", "escape"):
            assert isinstance(editor.app.screen, ConflictDialog)
            assert "max_in_flight: yours 4, file 3 (was 2)" in editor.text
            await editor.press(answer)
            assert editor.source.state.policy.policy.max_in_flight == 3
            assert editor.screen.editing.changes == {KEY: 4}
            assert "Not saved" in editor.told
            await editor.press("s")


async def test_taking_the_file_still_saves_the_other_edits(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.go_to("policy.max_context_tokens")
        await editor.type("4096")
        editor.change_outside(max_in_flight=3)
        await editor.press("f2", "right", "enter")
        assert editor.saved[-1] == {"policy.max_context_tokens": 4096}
        assert editor.source.state.policy.policy.max_in_flight == 3


async def test_a_file_that_changes_during_the_save_is_not_written_over(open_editor: Any, source: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        save = source.save

        async def overtaken(changes: Mapping[str, LimitValue], etag: str) -> Any:
            source.save = save
            editor.change_outside(max_in_flight=7)
            raise PolicyConflict("homebase.toml changed since this edit began.", (KEY,))

        source.save = overtaken
        await editor.press("f2")
        assert isinstance(editor.app.screen, ConflictDialog)
        assert source.state.policy.policy.max_in_flight == 7


async def test_a_broken_file_is_named_and_saving_is_refused(open_editor: Any, source: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        problem = "homebase.toml:12: policy.max_in_flight: 0 is not allowed; allowed: 1 to 64."
        good = source.state
        source.state = msgspec.structs.replace(good, problem=problem, etag="etag-broken")
        await editor.tick()
        assert "✕ homebase.toml:12" in editor.told
        assert "✕ file not valid" in editor.text
        assert editor.save_button.disabled
        await editor.press("f2")
        assert editor.saved == []
        assert editor.screen.editing.changes == {KEY: 4}
        source.state = msgspec.structs.replace(good, etag="etag-mended")
        await editor.tick()
        assert "valid again" in editor.told
        await editor.press("f2")
        assert editor.saved == [{KEY: 4}]
