"""The editing model: what was typed, what it means, and what a change elsewhere does to it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.editing import LIMITS, Editing, list_differences, plan_step, write_text
from server.policy import Limit, LimitValue, Policy, apply_changes, list_limits, validate_policy
from server.policy_store import PolicyState

KEY = "policy.max_in_flight"
OTHER = "policy.max_context_tokens"


def state(**values: LimitValue) -> PolicyState:
    """A policy state; `max_in_flight=3` sets `policy.max_in_flight`."""
    changes = {next(key for key in LIMITS if key.endswith(f".{name}")): value for name, value in values.items()}
    return PolicyState(
        policy=validate_policy(apply_changes(msgspec.to_builtins(Policy()), changes)),
        path="/home/ada/homebase.toml",
        exists=True,
        etag="e",
        problem=None,
        origins={},
        can_undo=False,
    )


@pytest.mark.parametrize(
    "limit", [limit for limit in list_limits() if limit.kind != "table"], ids=lambda limit: limit.key
)
def test_every_value_in_force_reads_back_as_itself(limit: Limit) -> None:
    editing = Editing(state())
    assert editing.typed(limit.key, editing.text(limit.key)).drafts == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), (" 3 ", 3), ("64", 64), ("1", 1)],
)
def test_a_valid_text_is_a_change(text: str, value: int) -> None:
    editing = Editing(state()).typed(KEY, text)
    assert editing.changes == {KEY: value}
    assert editing.text(KEY) == text
    assert editing.refusal is None


@pytest.mark.parametrize("text", ["", " ", "abc", "-1", "0", "65", "1e9", "2.5", "9" * 5000, "٣", "2\n3", "true"])
def test_an_invalid_text_is_kept_and_judged_with_the_range(text: str) -> None:
    editing = Editing(state()).typed(KEY, text)
    draft = editing.drafts[KEY]
    assert draft.text == text
    assert draft.value is None
    assert "1 to 64" in (draft.problem or "")
    assert editing.changes == {}
    assert "max_in_flight" in (editing.refusal or "")


@given(st.text(max_size=40), st.sampled_from(sorted(LIMITS)))
def test_any_text_is_either_a_change_a_problem_or_what_is_in_force(text: str, key: str) -> None:
    editing = Editing(state()).typed(key, text)
    if key in editing.drafts:
        draft = editing.drafts[key]
        assert draft.text == text
        assert (draft.value is None) != (draft.problem is None)
    else:
        assert editing.text(key) == write_text(editing.current(key))


def test_typing_the_value_in_force_is_no_change() -> None:
    assert Editing(state()).typed(KEY, "4").typed(KEY, " 2 ").drafts == {}


def test_one_invalid_limit_refuses_the_save_and_is_named() -> None:
    editing = Editing(state()).typed(OTHER, "4096").typed(KEY, "none")
    assert editing.changes == {OTHER: 4096}
    assert "Fix max_in_flight first" in (editing.refusal or "")


def test_a_change_elsewhere_reaches_untouched_limits() -> None:
    editing = Editing(state()).typed(OTHER, "4096").adopted(state(max_in_flight=3))
    assert editing.current(KEY) == 3
    assert editing.changes == {OTHER: 4096}
    assert editing.conflicts == ()


def test_a_change_elsewhere_of_an_edited_limit_is_a_conflict() -> None:
    editing = Editing(state()).typed(KEY, "4").typed(OTHER, "4096").adopted(state(max_in_flight=3))
    assert [draft.key for draft in editing.conflicts] == [KEY]
    assert editing.text(KEY) == "4"


def test_a_conflict_lasts_while_the_draft_is_typed_on() -> None:
    editing = Editing(state()).typed(KEY, "4").adopted(state(max_in_flight=3)).typed(KEY, "5")
    assert [draft.key for draft in editing.conflicts] == [KEY]


def test_a_change_elsewhere_to_what_was_typed_here_settles_it() -> None:
    assert Editing(state()).typed(KEY, "3").adopted(state(max_in_flight=3)).drafts == {}


def test_an_invalid_draft_survives_a_change_elsewhere() -> None:
    editing = Editing(state()).typed(KEY, "abc").adopted(state(max_in_flight=3))
    assert editing.text(KEY) == "abc"
    assert [draft.key for draft in editing.conflicts] == [KEY]


def test_insisting_keeps_the_text_and_ends_the_conflict() -> None:
    editing = Editing(state()).typed(KEY, "4").adopted(state(max_in_flight=3)).insisted()
    assert editing.conflicts == ()
    assert editing.changes == {KEY: 4}


def test_yielding_drops_only_what_is_in_conflict() -> None:
    editing = Editing(state()).typed(KEY, "4").typed(OTHER, "4096").adopted(state(max_in_flight=3)).yielded()
    assert editing.changes == {OTHER: 4096}
    assert editing.text(KEY) == "3"


def test_what_is_typed_during_a_save_stays_a_change() -> None:
    editing = Editing(state()).typed(KEY, "4")
    saved = editing.changes
    editing = editing.typed(KEY, "5").settled(state(max_in_flight=4), saved)
    assert editing.changes == {KEY: 5}
    assert editing.conflicts == ()


def test_a_save_under_a_flag_leaves_no_draft_though_another_value_is_in_force() -> None:
    editing = Editing(state(port=9000)).typed("server.port", "12000")
    assert editing.settled(state(port=9000), editing.changes).drafts == {}


def test_a_broken_file_refuses_the_save() -> None:
    broken = msgspec.structs.replace(state(), problem="homebase.toml:3: nonsense.")
    assert "file on disk is not valid" in (Editing(state()).typed(KEY, "4").adopted(broken).refusal or "")


def test_a_file_that_is_gone_does_not_hinder_a_save() -> None:
    gone = msgspec.structs.replace(state(), problem="homebase.toml is gone.", exists=False)
    assert Editing(state()).typed(KEY, "4").adopted(gone).refusal is None


def test_reverting_brings_back_what_is_in_force() -> None:
    editing = Editing(state()).typed(KEY, "4").typed(OTHER, "x").reverted()
    assert editing.drafts == {}
    assert (editing.text(KEY), editing.text(OTHER)) == ("2", "0")


@pytest.mark.parametrize(
    ("key", "text", "direction", "following"),
    [
        (KEY, "2", 1, "3"),
        (KEY, "1", -1, "1"),
        (KEY, "64", 1, "64"),
        (KEY, "abc", 1, None),
        ("server.port", "11234", 1, None),
        ("engine.stall_s", "60", 1, None),
        ("model.path", "nano", 1, None),
        ("console.ascii", "false", 1, "true"),
        ("console.ascii", "true", 1, "false"),
        ("policy.refusal_status", "auto", 1, "400"),
        ("policy.refusal_status", "auto", -1, "503"),
        ("policy.refusal_status", "junk", 1, "auto"),
    ],
)
def test_stepping_walks_small_ranges_and_choices(key: str, text: str, direction: int, following: str | None) -> None:
    assert plan_step(key, text, direction) == following


def test_differences_name_every_limit_that_moved() -> None:
    before, after = state().policy, state(max_in_flight=3, port=9000).policy
    assert list_differences(before, after) == (("server.port", 11234, 9000), (KEY, 2, 3))
