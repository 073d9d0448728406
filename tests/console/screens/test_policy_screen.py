"""The policy editor: what is listed, and typing that is judged at each key."""

from __future__ import annotations

from typing import Any

import msgspec
from textual import events

from console.limit_words import DOTS
from console.widgets.limit_field import LimitField
from console.widgets.limit_table import LimitTable
from server.policy import validate_policy

KEY = "policy.max_in_flight"


async def test_every_limit_is_listed_under_its_table(open_editor: Any) -> None:
    async with open_editor((120, 80)) as editor:
        for key in editor.screen.editing.state.origins:
            table, _, name = key.rpartition(".")
            assert (f"[{table}]" if table else " tables of your own ") in editor.text
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
        assert chosen == "policy.queue_limit"
        await editor.pilot.click(table, offset=(30, 3))
        await editor.settle()
        assert table.is_open
        assert table.cursor_key == chosen


async def test_names_of_keys_are_shown_and_edited_in_the_file_only(open_editor: Any) -> None:
    async with open_editor() as editor:
        editor.change_outside(keys=("alice = HOMEBASE_KEY_ALICE",))
        await editor.tick()
        await editor.go_to("server.keys")
        assert "alice = HOMEBASE_KEY_ALICE" in editor.text
        for press in ("enter", "d", "space", "right"):
            await editor.press(press)
            assert not editor.screen.query_one(LimitTable).is_open
            assert editor.screen.editing.drafts == {}
        assert "edit it in homebase.toml" in editor.told
