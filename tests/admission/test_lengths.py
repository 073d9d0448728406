from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.admission.lengths import CLIENTS_KEPT, LENGTHS_KEPT, UNKNOWN_TOKENS, Lengths, find_ends
from server.admission.place import Place
from server.snapshot import StreamView


def stream(completion_tokens: int = 0, *, client: str = "goose/1", max_tokens: int = 32_000, **rest: Any) -> StreamView:
    fields: dict[str, Any] = {
        "id": "r", "session": "s", "parent_session": None, "lane": "unknown", "model": "m", "phase": "decode",
        "context_tokens": 100, "context_limit_tokens": 4096, "prompt_tokens": 100, "cached_tokens": 0,
        "prefill_done_tokens": 100, "prefill_tps": None, "decode_tps": None, "ttft_s": None, "age_s": 1.0,
        "idle_s": 0.0, "streaming": True, "decode_history_tps": (),
    }  # fmt: skip
    return StreamView(**fields, client=client, completion_tokens=completion_tokens, max_tokens=max_tokens, **rest)


def remember(*ended: int, client: str = "goose/1", outcome: str = "stop") -> Lengths:
    lengths = Lengths()
    for tokens in ended:
        lengths.note(stream(tokens, client=client, outcome=outcome))
    return lengths


@pytest.mark.parametrize(("now", "left"), [(0, 300), (100, 200), (299, 101), (350, 50), (500, 500)])
def test_what_is_left_is_up_to_the_median_of_the_longer_ones(now: int, left: float) -> None:
    assert remember(100, 200, 300, 400, 500).expect_left(stream(now)) == left


def test_never_more_than_max_tokens_leave() -> None:
    assert remember(1000, 1000, 1000).expect_left(stream(10, max_tokens=50)) == 40
    assert Lengths().expect_left(stream(10, max_tokens=50)) == 40
    assert Lengths().expect_left(stream(10)) == UNKNOWN_TOKENS


def test_a_program_is_judged_by_its_own_answers_and_else_by_all() -> None:
    lengths = remember(100, 100, 100)
    for _ in range(4):
        lengths.note(stream(900, client="alice codex/2", key="alice", outcome="stop"))
    assert lengths.expect_left(stream(0, client="Goose/7")) == 100
    assert lengths.expect_left(stream(0, client="codex/3")) == 900
    assert lengths.expect_left(stream(0, client="new/1")) == 900
    assert lengths.expect_tokens() == [900]
    assert Lengths().expect_tokens() == [UNKNOWN_TOKENS]


def test_a_newcomer_is_expected_to_answer_as_its_program_does() -> None:
    lengths, newcomer = remember(100, 200, 300), Place("s", None, 0, "parent", "goose/9", "")
    assert lengths.expect_output(newcomer, 32_000) == 200
    assert lengths.expect_output(newcomer, 50) == 50


def test_who_always_ends_at_its_max_tokens_is_expected_to_do_so_again() -> None:
    lengths = remember(*[200] * 5, outcome="length")
    assert lengths.expect_left(stream(0, max_tokens=250)) == 250
    assert lengths.expect_left(stream(150, max_tokens=300)) == 150
    assert lengths.expect_left(stream(0)) == 200 + UNKNOWN_TOKENS, "nothing says that it goes on to 32,000"


def test_one_that_is_longer_than_all_before_goes_on_for_as_long_again() -> None:
    assert remember(100, 200, 300).expect_left(stream(1000)) == 1000
    assert Lengths().expect_left(stream(1000)) == 1000
    assert Lengths().expect_left(stream(100)) == UNKNOWN_TOKENS


def test_of_four_answers_each_quarter_ends_with_one() -> None:
    lefts = remember(100, 200, 300, 400).expect_lefts(stream(50), (0.2, 0.25, 0.5, 0.75, 0.9))
    assert lefts == [50, 50, 150, 250, 350]


def test_beyond_what_is_known_half_of_the_rest_end_with_each_doubling() -> None:
    lefts = Lengths().expect_lefts(stream(0), (0.5, 0.75, 0.875))
    assert lefts == [UNKNOWN_TOKENS, 2 * UNKNOWN_TOKENS, 3 * UNKNOWN_TOKENS]


@pytest.mark.parametrize(
    ("answers", "median"),
    [
        ([(10, True), (20, True), (30, True)], 20),
        ([(10, False)] * 9 + [(10, True), (20, True), (30, True)], 20),
        ([(5, True), (5, True), (5, True), (100, False), (100, False), (100, False)], 5),
        ([(5, True), (5, True), (5, True), *[(100, False)] * 4], None),
        ([(10, False)] * 9, None),
        ([(10, True), (20, True), (30, False)], 20),
        ([(10, True), (20, True)], None),
    ],
)
def test_an_answer_that_max_tokens_ended_says_only_that_it_was_at_least_so_long(
    answers: list[tuple[int, bool]], median: int | None
) -> None:
    assert find_ends(answers, 0).find(0.5) == median


@pytest.mark.parametrize("outcome", ["cancelled", "failed"])
def test_an_answer_that_was_cut_tells_nothing(outcome: str) -> None:
    assert remember(100, 100, 100, outcome=outcome).expect_left(stream()) == UNKNOWN_TOKENS


def test_what_is_remembered_is_bounded() -> None:
    lengths = remember(*range(1, LENGTHS_KEPT + 50))
    assert lengths.expect_left(stream()) == 50 + LENGTHS_KEPT // 2 - 1
    for number in range(CLIENTS_KEPT):
        lengths.note(stream(7, client=f"c{number}/1", outcome="stop"))
    assert lengths.expect_tokens() == [7], "the first client is forgotten"


@given(st.lists(st.integers(1, 10_000)), st.integers(0, 10_000), st.integers(1, 20_000))
def test_an_estimate_is_never_negative_nor_above_what_may_come(ended: list[int], now: int, most: int) -> None:
    left = remember(*ended).expect_left(stream(now, max_tokens=most))
    assert 0 <= left <= max(0, most - now)
