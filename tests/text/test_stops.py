from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.text.stops import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.feed(piece) for piece in pieces)
    if matcher.matched is None:
        shown += matcher.release()
    return shown, matcher.matched


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "matched"),
    [
        ([], ["alpha", " beta"], "alpha beta", None),
        (["beta gamma"], ["alpha ", "beta", " gamma", " delta"], "alpha ", "beta gamma"),
        (["beta gamma"], ["alpha ", "beta", " delta"], "alpha beta delta", None),
        (["beta gamma"], ["alpha beta gamma delta"], "alpha ", "beta gamma"),
        (["\n\n"], ["a\n", "b\n", "\nc"], "a\nb", "\n\n"),
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),
        (["x", "yz"], ["abc", "y", "z", "x"], "abc", "yz"),
        (["stop"], ["st"], "st", None),
        (["stop"], ["stop"], "", "stop"),
        (["ab", "b"], ["xab"], "x", "ab"),
        (["abcd", "bc"], ["abcd"], "a", "bc"),
        (["ě"], ["p", "ě", "t"], "p", "ě"),
        (["w", "x", "y", "z"], ["a", "b", "z", "y"], "ab", "z"),
    ],
)
def test_text_is_cut_exactly_before_a_stop(
    stops: list[str], pieces: list[str], shown: str, matched: str | None
) -> None:
    assert run(stops, pieces) == (shown, matched)


def test_nothing_is_shown_that_may_become_a_stop() -> None:
    matcher = StopMatcher(["</end>"])
    assert matcher.feed("a </e") == "a "
    assert matcher.held_text == "</e"
    assert matcher.feed("m>") == "</em>"
    assert matcher.held_text == ""


def test_nothing_is_shown_after_a_stop() -> None:
    matcher = StopMatcher(["!"])
    assert matcher.feed("a!b") == "a"
    assert matcher.feed("c") == ""
    assert matcher.release() == ""


letters = st.text(alphabet="ab\n", max_size=30)


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4), letters, st.data())
def test_how_text_is_cut_into_pieces_changes_nothing(stops: list[str], text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(stops, pieces) == run(stops, [text])


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), min_size=1, max_size=4), letters)
def test_shown_text_has_no_stop_in_it_and_is_a_beginning_of_the_text(stops: list[str], text: str) -> None:
    shown, matched = run(stops, list(text))
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert (matched is None) == (not any(stop in text for stop in stops))
