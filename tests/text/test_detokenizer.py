from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer

BYTES = [bytes([n]) for n in range(256)]
HIDDEN = frozenset({300})


def decode_bytes(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def build_both() -> list[Detokenizer]:
    return [ByteDetokenizer(BYTES, HIDDEN), WindowDetokenizer(decode_bytes, HIDDEN)]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_pieces_together_are_the_text(text: str) -> None:
    text = text.replace("\ufffd", "")
    for detokenizer in build_both():
        assert "".join(map(detokenizer.add, text.encode())) + detokenizer.finish() == text


@pytest.mark.parametrize("text", ["Příliš žluťoučký", "日本語", "👩‍👩‍👧 ok"])
def test_half_a_character_is_never_shown_wherever_the_text_is_cut(text: str) -> None:
    data = text.encode()
    for size in range(len(data) + 1):
        for detokenizer in build_both():
            shown = "".join(map(detokenizer.add, data[:size])) + detokenizer.finish()
            assert text.startswith(shown)
            assert "\ufffd" not in shown


def test_bytes_that_are_no_character_are_left_out() -> None:
    for detokenizer in build_both():
        shown = "".join(map(detokenizer.add, b"a\xff\xfeb\xc3(c" + b"d" * 9)) + detokenizer.finish()
        assert shown == "ab(c" + "d" * 9


def test_hidden_tokens_have_no_text() -> None:
    for detokenizer in build_both():
        assert detokenizer.add(300) == ""
        assert detokenizer.add(ord("a")) == "a"


def test_tokens_that_never_have_text_are_told_from_unfinished_ones() -> None:
    for detokenizer in build_both():
        assert detokenizer.hides(300)
        assert not detokenizer.hides(0xC3)
    assert ByteDetokenizer(BYTES, HIDDEN).hides(5000)


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    detokenizer = ByteDetokenizer(BYTES, HIDDEN)
    assert detokenizer.add(5000) == ""
    assert detokenizer.add(-1) == ""


def test_one_space_before_the_first_word_is_dropped_where_the_vocabulary_writes_one() -> None:
    detokenizer = ByteDetokenizer([b" a", b" b"], frozenset(), trims_first_space=True)
    assert [detokenizer.add(0), detokenizer.add(1), detokenizer.add(0)] == ["a", " b", " a"]


def test_spaces_that_depend_on_the_neighbours_are_kept() -> None:
    words = ["hello", "world", "!"]

    def decode(ids: list[int]) -> str:
        return " ".join(words[n] for n in ids).replace(" !", "!")

    detokenizer = WindowDetokenizer(decode, frozenset())
    assert [detokenizer.add(n) for n in (0, 1, 2)] == ["hello", " world", "!"]
