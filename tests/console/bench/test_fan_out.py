"""What a fan-out is made of, and what is read off one."""

from __future__ import annotations

import pytest

from console.bench.fan_out import Case, Mode, Outcome, Turn, conclude, parse_contexts, parse_streams, plan_cases


def build_outcome(mode: Mode, streams: int, *turns: Turn, context: int = 2048, wall_s: float = 10.0) -> Outcome:
    return Outcome(Case(mode, context, streams), turns, wall_s)


@pytest.mark.parametrize(
    ("text", "counts"), [("4", (4,)), ("1..4", (1, 2, 3, 4)), ("4,1,2,2", (1, 2, 4)), (" 1, 3", (1, 3))]
)
def test_streams_are_given_as_a_number_a_span_or_a_list(text: str, counts: tuple[int, ...]):
    assert parse_streams(text) == counts


@pytest.mark.parametrize("text", ["", "0", "65", "1..", "..4", "4..1", "two", "1,,2", "-1", "1.5"])
def test_streams_that_cannot_be_say_what_can(text: str):
    with pytest.raises(ValueError, match=r"1\.\.4"):
        parse_streams(text)


@pytest.mark.parametrize(("text", "contexts"), [("2k,8k", (2048, 8192)), ("64", (64,)), ("8K, 100", (100, 8192))])
def test_contexts_are_tokens_or_thousands_of_them(text: str, contexts: tuple[int, ...]):
    assert parse_contexts(text) == contexts


@pytest.mark.parametrize("text", ["", "k", "15", "2m", "2.5k", "-2k", "99999999999"])
def test_contexts_that_cannot_be_say_what_can(text: str):
    with pytest.raises(ValueError, match="2k,8k or 2048"):
        parse_contexts(text)


def test_cases_change_the_policy_as_seldom_as_can_be():
    cases = plan_cases((64, 128), (1, 2), ("off", "on"))
    assert [(case.context_tokens, case.mode, case.streams) for case in cases] == [
        (context, mode, streams) for context in (64, 128) for mode in ("off", "on") for streams in (1, 2)
    ]


def test_a_rate_counts_the_tokens_after_the_first():
    assert Turn(completion_tokens=11, decode_s=2.0).decode_tps == 5.0
    assert Turn(completion_tokens=11, decode_s=2.0, pieces=3).decode_tps == 5.0
    for none in (
        Turn(completion_tokens=1, decode_s=2.0),
        Turn(completion_tokens=11, decode_s=None),
        Turn(completion_tokens=11, decode_s=2.0, fault="it broke"),
        Turn(completion_tokens=17, decode_s=0.01, pieces=2),
    ):
        assert none.decode_tps is None


def test_an_outcome_tells_the_middle_and_the_worst():
    slow = Turn(completion_tokens=11, decode_s=5.0, ttft_s=9.0, refusals=("in_flight_full", "in_flight_full"))
    quick = Turn(completion_tokens=11, decode_s=1.0, ttft_s=1.0)
    outcome = build_outcome("on", 3, slow, quick, Turn(fault="it broke", refusals=("draining",)))
    assert (outcome.median_tps, outcome.lowest_tps) == (6.0, 2.0)
    assert (outcome.median_ttft_s, outcome.worst_ttft_s) == (5.0, 9.0)
    assert outcome.refusals == 3
    assert outcome.faults == ["it broke"]


def test_nothing_is_told_of_turns_that_all_failed():
    outcome = build_outcome("on", 1, Turn(fault="it broke"))
    assert (outcome.median_tps, outcome.lowest_tps, outcome.median_ttft_s, outcome.worst_ttft_s) == (None,) * 4


def test_the_widest_fan_out_of_each_context_that_ran_both_ways_is_compared():
    turns = [Turn(completion_tokens=11, decode_s=seconds) for seconds in (1.0, 2.0)]
    refused = Turn(completion_tokens=11, decode_s=0.5, refusals=("in_flight_full",))
    told = conclude(
        [
            build_outcome("off", 1, turns[0]),
            build_outcome("on", 1, turns[0]),
            build_outcome("off", 2, *turns, wall_s=4.0),
            build_outcome("on", 2, turns[0], refused, wall_s=5.0),
            build_outcome("off", 4, *turns),
            build_outcome("off", 4, *turns, context=8192),
        ]
    )
    assert told == (
        "2 streams at 2,048 tokens: with everybody let in the slowest decodes at 5.00 tok/s and all are done after "
        "4.0 s; under the policy at 10.0 tok/s and after 5.0 s, with 1 refusal.",
    )
