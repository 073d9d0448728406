from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.text.answer import AnswerReader
from server.text.markup import NO_MARKUP, Markers, Markup
from server.text.parts import CallBegun, TextDelta, ThoughtDelta
from server.text.tools import Tool

CALL = "<tool_call>\n<function=write>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>"
SIZES = [1, 2, 3, 7, None]


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize(
    ("text", "opens_thought", "thought", "shown"),
    [
        ("Hello.", False, "", "Hello."),
        ("  Hello.\n\n", False, "", "  Hello.\n\n"),
        ("because\n</think>\n\nYes.", True, "because", "Yes."),
        ("\n\nbecause \n\nso\n</think>Yes. \n", True, "because \n\nso", "Yes. \n"),
        ("<think>\nbecause\n</think>\n\nYes.", False, "because", "Yes."),
        ("<think>\nbecause\n</think>\n\nYes.", True, "because", "Yes."),
        ("\n<think></think>\n\nYes.", False, "", "Yes."),
        ("<think>because", False, "because", ""),
        ("because\n", True, "because", ""),
        ("because </thi", True, "because </thi", ""),
        ("", True, "", ""),
        ("\n", True, "", ""),
        ("</think>\n\nYes.", False, "", "Yes."),
        ("Yes.</think>", False, "", "Yes."),
        ("a <think>b</think> c", False, "b", "ac"),
        ("because</think>\n \n", True, "because", ""),
        ("x < y, <b>, </thin, <thinker>, <", False, "", "x < y, <b>, </thin, <thinker>, <"),
        ("<<think>a<</think><", False, "a<", "<<"),
    ],
)
def test_thoughts_and_text_are_told_apart(
    read: Any, at: int | None, text: str, opens_thought: bool, thought: str, shown: str
) -> None:
    answer = read(text, at, opens_thought=opens_thought)
    assert (answer.thought, answer.text, answer.calls) == (thought, shown, [])


@pytest.mark.parametrize("at", SIZES)
def test_prose_before_a_call_is_text_without_markup(read: Any, at: int | None) -> None:
    answer = read(f"plan\n</think>\n\nI will write it.\n\n{CALL}\n", at, opens_thought=True)
    assert (answer.thought, answer.text) == ("plan", "I will write it.")
    assert [(call.name, call.values, call.is_ended) for call in answer.calls] == [("write", {"path": "a.py"}, True)]
    assert answer.order == ["ThoughtDelta", "TextDelta", "CallBegun", "CallDelta", "CallEnded"]


@pytest.mark.parametrize("at", SIZES)
def test_several_calls_are_numbered_and_text_between_them_is_kept(read: Any, at: int | None) -> None:
    answer = read(f"{CALL}\n{CALL}\nAnd then \n{CALL}\n \n", at)
    assert [call.id for call in answer.calls] == ["call_0", "call_1", "call_2"]
    assert all(call.is_ended for call in answer.calls)
    assert answer.text == "And then"


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize("text", ["a < b", "use <tool", "<tool_cal>", "</tool_call", "<tool_call", "a <tool_callx>"])
def test_what_becomes_no_marker_is_delivered_complete(read: Any, at: int | None, text: str) -> None:
    assert read(text, at).text == text
    assert read(text, at, was_cut=True).text == text


def test_what_cannot_become_a_marker_any_more_is_delivered_at_once() -> None:
    reader = AnswerReader(Markup(Markers("<think>", "</think>")))
    shown = ["".join(part.text for part in reader.feed(letter) if isinstance(part, TextDelta)) for letter in "a<th>b "]
    assert shown == ["a", "", "", "", "<th>", "b", ""]
    assert reader.finish(cut=False) == [TextDelta(" ", 6)]


def test_thoughts_come_while_they_are_thought() -> None:
    reader = AnswerReader(Markup(Markers("<think>", "</think>")), opens_thought=True)
    assert reader.feed("\nFirst,") == [ThoughtDelta("First,")]
    assert reader.feed(" then") == [ThoughtDelta(" then")]


@pytest.mark.parametrize("at", SIZES)
def test_without_tools_their_markup_is_text(read: Any, at: int | None) -> None:
    answer = read(f"<think>a</think>See {CALL} there", at, tools=())
    assert (answer.thought, answer.text, answer.calls) == ("a", f"See {CALL} there", [])


def test_without_any_markup_everything_is_text_at_once() -> None:
    reader = AnswerReader(NO_MARKUP, opens_thought=True)
    assert reader.feed(" <think> \n") == [TextDelta(" <think> \n", 0)]
    assert reader.finish(cut=True) == []


@pytest.mark.parametrize("at", SIZES)
def test_a_call_ends_a_thought_that_nobody_ended(read: Any, at: int | None) -> None:
    answer = read(f"I should write.\n{CALL}\n</think>\n\nDone.", at, opens_thought=True)
    assert (answer.thought, answer.text) == ("I should write.", "Done.")
    assert [call.values for call in answer.calls] == [{"path": "a.py"}]


@pytest.mark.parametrize("at", SIZES)
def test_a_marker_that_is_only_thought_about_stays_in_the_thought(read: Any, at: int | None) -> None:
    thought = "a <tool_call> \n is written so, and <tool_call>"
    answer = read(f"{thought}</think>Yes.", at, opens_thought=True)
    assert (answer.thought, answer.text, answer.calls) == (thought, "Yes.", [])
    assert read("about <tool_call>", at, opens_thought=True).thought == "about <tool_call>"


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize(
    "inside", ["", "no call", "<function", "<function=>x", "\n<function=>\n<parameter=a>1</parameter>"]
)
def test_a_call_that_cannot_be_read_is_text_without_its_markers(read: Any, at: int | None, inside: str) -> None:
    answer = read(f"Look: <tool_call>{inside}</tool_call>", at)
    assert (answer.text, answer.calls) == (f"Look: {inside}", [])
    assert read(f"Look: <tool_call>{inside}", at).text == f"Look: {inside}"


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize("inside", ["", "\n", "\n<func", "\n<function=wri"])
def test_a_call_that_is_cut_before_it_has_begun_is_dropped(read: Any, at: int | None, inside: str) -> None:
    answer = read(f"Look:\n<tool_call>{inside}", at, was_cut=True)
    assert (answer.text.rstrip(), answer.calls) == ("Look:", [])


def test_ids_of_calls_are_never_the_same() -> None:
    markup = Markup(None, Markers("<tool_call>", "</tool_call>"), "json", lambda *_: [{"name": "f"}] * 50)
    parts = AnswerReader(markup, [Tool("f", {}, {})]).feed("<tool_call>{}</tool_call>")
    assert len({part.id for part in parts if isinstance(part, CallBegun)}) == 50


MARKUP_PIECES = st.sampled_from(
    [
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "write>", "</function>", "<parameter=",
        "path>", "lines>", "note>", "</parameter>", "\n", " ", "<", ">", "</", "null", "12", "{", "a", '"', "\\", "\r",
        "\x00", "\ud800", "ě", CALL,
    ]
)  # fmt: skip
answers = st.lists(MARKUP_PIECES, max_size=25).map("".join)


@settings(deadline=None, max_examples=400)
@given(text=answers, opens_thought=st.booleans(), was_cut=st.booleans(), tools=st.booleans(), data=st.data())
def test_how_text_is_cut_into_pieces_changes_nothing(
    read: Any, text: str, opens_thought: bool, was_cut: bool, tools: bool, data: st.DataObject
) -> None:
    at = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    how: dict[str, Any] = {"opens_thought": opens_thought, "was_cut": was_cut} | ({} if tools else {"tools": ()})
    whole = read(text, None, **how)
    assert read(text, at, **how) == whole
    assert read(text, 1, **how) == whole


@settings(deadline=None, max_examples=300)
@given(text=answers, opens_thought=st.booleans())
def test_no_marker_of_a_thought_is_ever_shown(read: Any, text: str, opens_thought: bool) -> None:
    answer = read(text, 1, opens_thought=opens_thought, tools=())
    assert not any(marker in answer.text + answer.thought for marker in ("<think>", "</think>"))


@settings(deadline=None, max_examples=300)
@given(text=answers, opens_thought=st.booleans(), was_cut=st.booleans())
def test_a_call_that_has_ended_has_an_object_of_arguments(
    read: Any, text: str, opens_thought: bool, was_cut: bool
) -> None:
    for call in read(text, 1, opens_thought=opens_thought, was_cut=was_cut).calls:
        assert not call.is_ended or isinstance(call.values, dict)
        call.arguments.encode()
