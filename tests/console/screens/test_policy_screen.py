"""The policy editor: typing, judging, saving, undoing, and changes of the file made elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Button

from console.app import HomebaseApp
from console.limit_words import DOTS
from console.screens.dialogs import ConfirmDialog, ConflictDialog
from console.screens.policy import PolicyScreen
from console.widgets.limit_field import LimitField
from console.widgets.limit_table import LimitTable
from console.widgets.lines import Lines, line_width
from server.errors import PolicyConflict, PolicyInvalid, PolicyUnwritable
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


async def test_every_limit_is_listed_under_its_table(open_editor: Any) -> None:
    async with open_editor((120, 40)) as editor:
        for key in editor.screen.editing.state.origins:
            table, _, name = key.rpartition(".")
            assert f"[{table}]" in editor.text
            assert f" {name} " in editor.text


async def test_a_limit_tells_meaning_range_value_origin_and_effect(open_editor: Any, source: Any) -> None:
    source.state = msgspec.structs.replace(source.state, origins={**source.state.origins, KEY: "homebase.toml:12"})
    async with open_editor() as editor:
        for fact in (
            "Completions in flight at once",
            "1 to 64 streams",
            "in force 2 streams",
            "homebase.toml line 12",
            "at the next request's admission",
        ):
            assert fact in editor.detail


async def test_limits_that_are_not_enforced_say_so(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.go_to("policy.subagents.max_depth")
        assert editor.text.count("◌ not enforced yet") == 4
        assert "enforced once admission knows agents" in editor.detail


async def test_a_value_from_a_flag_names_the_flag(open_editor: Any, source: Any) -> None:
    source.state = msgspec.structs.replace(source.state, origins={**source.state.origins, "server.port": "--port"})
    async with open_editor() as editor:
        await editor.go_to("server.port")
        assert "--port, for this run only" in editor.detail


async def test_a_secret_is_never_on_the_screen(open_editor: Any, source: Any) -> None:
    policy = validate_policy({"server": {"api_key": "hunter2"}})
    source.state = msgspec.structs.replace(source.state, policy=policy)
    async with open_editor() as editor:
        await editor.go_to("server.api_key")
        assert DOTS in editor.text
        await editor.type("swordfish")
        assert "swordfish" not in editor.text
        assert "hunter2" not in editor.text
        await editor.press("escape")
        assert f'+api_key = "{DOTS}"' in editor.text
        await editor.press("s")
        assert editor.saved == [{"server.api_key": "swordfish"}]
        assert "swordfish" not in editor.text


async def test_a_value_that_waits_for_the_next_start_tells_what_this_run_does(open_editor: Any, source: Any) -> None:
    values = {**source.shown.policy.values, "server.port": 9000}
    source.change(policy=msgspec.structs.replace(source.shown.policy, values=values))
    async with open_editor() as editor:
        await editor.go_to("server.port")
        assert "this run goes on with 11234" in editor.detail


async def test_an_invalid_text_is_marked_explained_and_kept(open_editor: Any) -> None:
    async with open_editor() as editor:
        for text in ("", "abc", "-1", "1e9", "2.5", "0", "65", "9" * 5000):
            await editor.type(text)
            assert editor.screen.editing.text(KEY) == text
            assert "✕ allowed: 1 to 64 streams" in editor.text
            assert "allowed: 1 to 64." in editor.detail
            assert editor.save_button.disabled
            await editor.press("escape")
            assert editor.screen.editing.text(KEY) == text
            assert "✕ 1 not valid" in editor.text
        await editor.press("s")
        assert editor.saved == []
        assert "Fix max_in_flight first" in editor.told


async def test_what_is_typed_key_by_key_is_judged_at_each_key(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.press("enter", "6", "4")
        assert editor.screen.editing.changes == {KEY: 64}
        await editor.press("4")
        assert editor.screen.editing.text(KEY) == "644"
        assert editor.screen.editing.changes == {}
        await editor.press("backspace", "backspace")
        assert editor.screen.editing.changes == {KEY: 6}


async def test_blanks_around_a_number_are_fine(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type(" 3 ")
        assert editor.screen.editing.changes == {KEY: 3}
        await editor.press("ctrl+s")
        assert editor.saved == [{KEY: 3}]


async def test_several_pasted_lines_are_refused_and_the_draft_is_kept(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("7")
        field = editor.screen.query_one(LimitField)
        field.post_message(events.Paste("1\n2\n3"))
        await editor.settle()
        assert field.value == "7"
        assert "3 lines were pasted" in editor.told


async def test_one_pasted_line_is_inserted_without_its_line_ending(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("")
        editor.screen.query_one(LimitField).post_message(events.Paste("12\n"))
        await editor.settle()
        assert editor.screen.editing.changes == {KEY: 12}


async def test_an_edited_row_tells_what_it_was(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.press("enter")
        assert "← was 2" in editor.text
        assert "▲ 1 not saved" in editor.text


async def test_the_diff_follows_the_typing(open_editor: Any) -> None:
    async with open_editor() as editor:
        assert "Nothing to save" in editor.diff
        await editor.type("4")
        assert "-max_in_flight = 2" in editor.text
        assert "+max_in_flight = 4" in editor.text
        await editor.press("backspace", "5")
        assert "+max_in_flight = 5" in editor.text
        assert "+max_in_flight = 4" not in editor.text


async def test_typing_the_value_in_force_is_no_change(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.press("backspace", "2", "escape")
        assert editor.screen.unsaved_edits == 0
        assert "not saved" not in editor.text


async def test_choices_and_switches_are_walked_through(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.go_to("policy.refusal_status")
        await editor.press("right", "right")
        assert editor.screen.editing.changes == {"policy.refusal_status": 409}
        await editor.press("left", "left")
        assert editor.screen.editing.changes == {}
        await editor.go_to("console.ascii")
        await editor.press("space")
        assert editor.screen.editing.changes == {"console.ascii": True}
        await editor.press("enter")
        assert editor.screen.editing.changes == {}


async def test_small_numbers_are_stepped_and_stop_at_the_end_of_their_range(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.press("right")
        assert editor.screen.editing.changes == {KEY: 3}
        await editor.press("left", "left", "left")
        assert editor.screen.editing.changes == {KEY: 1}


async def test_moving_with_the_field_open_keeps_the_text(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.press("down")
        table = editor.screen.query_one(LimitTable)
        assert not table.is_open
        assert table.cursor_key == "policy.limit_behavior"
        assert editor.screen.editing.changes == {KEY: 4}


async def test_numbers_typed_in_a_field_do_not_switch_screens(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("12")
        assert editor.app.screen is editor.screen
        assert editor.screen.editing.changes == {KEY: 12}


async def test_the_default_is_one_key(open_editor: Any, source: Any) -> None:
    source.state = msgspec.structs.replace(source.state, policy=validate_policy({"policy": {"max_in_flight": 9}}))
    async with open_editor() as editor:
        await editor.press("d")
        assert editor.screen.editing.changes == {KEY: 2}


async def test_a_lowered_limit_says_what_happens_to_running_streams(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("1")
        assert "2 in flight, limit 1: none is cut; drains to 1." in editor.detail


async def test_a_click_chooses_and_a_second_click_edits(open_editor: Any) -> None:
    async with open_editor() as editor:
        table = editor.screen.query_one(LimitTable)
        await editor.pilot.click(table, offset=(30, 3))
        await editor.settle()
        chosen = table.cursor_key
        assert chosen == "policy.max_context_tokens"
        await editor.pilot.click(table, offset=(30, 3))
        await editor.settle()
        assert table.is_open
        assert table.cursor_key == chosen


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


async def test_saving_a_limit_that_is_not_enforced_does_not_claim_that_it_is(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.go_to("policy.subagents.max_depth")
        await editor.press("right", "s")
        assert "in force" not in editor.told
        assert "enforced once admission knows agents" in editor.told


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


async def test_looks_in_force(open_editor: Any, snap: Callable[..., None]) -> None:
    async with open_editor() as editor:
        await editor.snap_sizes(snap, "policy")


async def test_looks_edited(open_editor: Any, snap: Callable[..., None]) -> None:
    async with open_editor() as editor:
        await editor.type("1")
        await editor.go_to("policy.max_context_tokens")
        await editor.type("many")
        await editor.snap_sizes(snap, "policy-edited")


async def test_looks_in_conflict(open_editor: Any, snap: Callable[..., None]) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.press("escape")
        editor.change_outside(max_in_flight=3)
        await editor.tick()
        await editor.snap_sizes(snap, "policy-conflict")
        await editor.press("s")
        await editor.snap_sizes(snap, "policy-conflict-dialog")


async def test_looks_in_ascii(open_editor: Any) -> None:
    async with open_editor((80, 24), ascii=True) as editor:
        await editor.type("4")
        assert editor.text.isascii()
        await editor.press("escape", "r")
        assert editor.text.isascii()


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 30)])
async def test_rows_leave_room_for_the_scrollbar_from_the_start(
    make_app: Callable[..., HomebaseApp], source: Any, size: tuple[int, int]
) -> None:
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await pilot.pause()
        table = app.screen.query_one(LimitTable)
        assert table.show_vertical_scrollbar
        rows = table.query_one(Lines)
        assert {line_width(line) for line in rows.lines} == {rows.size.width}


async def test_the_screen_survives_being_resized_while_editing(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        for width, height in ((60, 16), (200, 60), (40, 10), (20, 5), (120, 40)):
            await editor.pilot.resize_terminal(width, height)
            await editor.settle()
        assert editor.screen.query_one(LimitField).value == "4"
        assert "+max_in_flight = 4" in editor.text
