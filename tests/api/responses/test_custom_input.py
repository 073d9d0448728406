"""A custom tool's text comes as its arguments grow, however they are cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.responses.custom_input import CustomInput, read_custom_input


@given(st.text(), st.booleans(), st.lists(st.integers(0, 200), max_size=20))
def test_how_the_arguments_are_cut_changes_no_text(text: str, escapes: bool, places: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=escapes)
    reader, cuts = CustomInput(), sorted({min(place, len(arguments)) for place in places} | {0, len(arguments)})
    shown = "".join(reader.feed(arguments[start:end]) for start, end in itertools.pairwise(cuts))
    assert reader.shown_text == shown
    assert reader.finish() == (text, text.removeprefix(shown))
    assert shown == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a"}', "a"),
        ('{"patch": "a"}', "a"),
        ('{"note": 1, "input": "a"}', "a"),
        ('"a"', "a"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"input": "cut', '{"input": "cut'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_whatever_a_model_writes_is_the_text_or_holds_it(arguments: str, text: str) -> None:
    assert read_custom_input(arguments) == text


def test_what_cannot_be_told_before_its_end_is_told_then() -> None:
    for arguments in ('{"patch": "a"}', "*** Begin Patch", "x" * 1000):
        reader = CustomInput()
        assert "".join(reader.feed(letter) for letter in arguments) == ""
        assert reader.finish() == (read_custom_input(arguments), read_custom_input(arguments))


def test_the_text_of_a_patch_comes_line_by_line() -> None:
    reader = CustomInput()
    pieces = ['{"input": "*** Begin', " Patch\\n+one\\", 'n+two"', "}"]
    assert [reader.feed(piece) for piece in pieces] == ["*** Begin", " Patch\n+one", "\n+two", ""]


def test_a_bare_control_character_is_told_at_the_end_as_it_stands() -> None:
    reader = CustomInput()
    assert [reader.feed(piece) for piece in ('{"input": "a', "\nb", 'c"}')] == ["a", "", ""]
    assert reader.finish() == ('{"input": "a\nbc"}', '{"input": "a\nbc"}')
