"""The one table of keys: consistent, and everything reachable without a chord."""

from __future__ import annotations

from collections import Counter

import pytest

from console.actions import ACTIONS, bindings_for, find_action, name_key, name_keys

UNSENT = ("ctrl+enter", "ctrl+shift", "super+", "alt+", "meta+")


def test_ids_are_unique_and_found() -> None:
    assert Counter(action.id for action in ACTIONS).most_common(1)[0][1] == 1
    assert find_action("app.quit").label == "Quit"
    with pytest.raises(KeyError):
        find_action("no.such")


@pytest.mark.parametrize("place", ["anywhere", "streams", "refusals", "detail"])
def test_no_key_means_two_things_in_one_place(place: str) -> None:
    keys = [key for action in ACTIONS if action.place == place for key in action.keys.split(",")]
    assert [key for key, count in Counter(keys).items() if count > 1] == []


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_has_a_plain_or_function_key_and_no_key_that_terminals_swallow(action: object) -> None:
    keys = getattr(action, "keys").split(",")  # noqa: B009
    plain = {"colon", "question_mark", "slash", "enter", "escape", "up", "down", "left", "home", "end"}
    assert any(len(key) == 1 or key in plain or (key[0] == "f" and key[1:].isdigit()) for key in keys)
    assert not any(key.startswith(UNSENT) for key in keys)


def test_bindings_carry_ids_for_remapping() -> None:
    assert {binding.id for binding in bindings_for("streams")} >= {"stream.stop", "stream.open"}  # type: ignore[union-attr]


def test_every_action_explains_itself() -> None:
    assert all(action.meaning.endswith(".") and action.label for action in ACTIONS)
    assert all(": " in action.palette for action in ACTIONS if action.palette)


@pytest.mark.parametrize(("key", "shown"), [("ctrl+d", "^d"), ("question_mark", "?"), ("f1", "F1"), ("x", "x")])
def test_keys_as_people_say_them(key: str, shown: str) -> None:
    assert name_key(key) == shown


def test_plain_keys_come_before_chords() -> None:
    assert name_keys(["ctrl+q", "q"]) == "q  ^q"
