from __future__ import annotations

import pytest

from server.text.tape import Tape


def build_tape(*pieces: str) -> Tape:
    tape = Tape()
    for piece in pieces:
        tape.add(piece)
    return tape


def test_what_may_become_a_marker_is_not_given_out() -> None:
    tape = build_tape("ab<e")
    assert tape.take_before("<end>", "</e>") == ("ab", None)
    assert tape.offset == 2
    tape.add("n")
    assert tape.take_before("<end>") == ("", None)
    tape.add("d>c")
    assert tape.take_before("<end>") == ("", "<end>")
    tape.take("<end>")
    assert (tape.offset, tape.take_before("<end>")) == (7, ("c", None))
    assert tape.is_empty


def test_at_the_end_nothing_can_become_a_marker() -> None:
    tape = build_tape("ab<en")
    tape.close(cut=True)
    assert tape.take_before("<end>") == ("ab<en", None)
    assert tape.is_cut


@pytest.mark.parametrize(("text", "first"), [("a<x><end>", "<x>"), ("a<end><x>", "<end>")])
def test_the_first_of_several_markers_counts(text: str, first: str) -> None:
    assert build_tape(text).take_before("<end>", "<x>") == ("a", first)


def test_the_front_is_compared_as_far_as_it_has_come() -> None:
    tape = build_tape("<pa")
    assert not tape.begins_with("<parameter=", "</function>")
    assert tape.may_begin_with("</function>", "<parameter=")
    assert not tape.may_begin_with("</function>")
    assert build_tape("").may_begin_with("x")
    assert build_tape("<parameter=a").begins_with("<parameter=")


def test_blanks_and_names_end_at_the_first_other_character() -> None:
    tape = build_tape(" \r\n", "na", "me>x")
    assert (tape.take_blank(), tape.take_name()) == (" \r\n", "name")
    tape.take(">")
    assert tape.take_name() == "x"


def test_what_is_taken_can_be_remembered() -> None:
    tape = build_tape("abc")
    tape.take("a")
    tape.record()
    tape.take("b")
    tape.add("d")
    tape.take("cd")
    assert tape.end_record() == "bcd"
