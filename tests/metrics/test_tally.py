"""The tally under a clock in hand: what streams and steps add, that it only rises, and that nothing piles up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.events import (
    EngineDied,
    EngineEvent,
    Outcome,
    PrefillAdvanced,
    PromptLookedUp,
    Refused,
    SequenceEnded,
    StepDone,
    TokensEmitted,
)
from server.metrics import families
from server.metrics.families import FAMILIES, Family
from server.metrics.tally import Tally


class Bench:
    """A tally with its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.tally = Tally(lambda: self.now)

    def open(self, request_id: str = "r", prompt_tokens: int = 100, model: str = "m") -> None:
        self.tally.stream_opened(request_id, model, prompt_tokens)

    def step(self, seconds: float, *events: EngineEvent, prefill: int = 0, sequences: int = 1) -> None:
        self.now += seconds
        self.tally.fold((StepDone(self.now, seconds, prefill, 0, sequences), *events))

    def chunk(self, done: int, tokens: int, cached: int = 0, request_id: str = "r") -> PrefillAdvanced:
        return PrefillAdvanced(request_id, done, tokens, 0.1, cached)

    def tokens(self, at_s: float, count: int = 1, drafted: int = 0, request_id: str = "r") -> TokensEmitted:
        return TokensEmitted(request_id, tuple(range(count)), at_s, drafted, count - 1)

    def end(self, outcome: Outcome, request_id: str = "r") -> None:
        self.tally.fold((SequenceEnded(request_id, outcome, self.now),))
        self.tally.stream_ended(request_id, outcome)

    def count(self, family: Family, *labels: str) -> float:
        return self.tally.series.counts(family, "m")[labels]

    def seen(self, family: Family, *labels: str) -> tuple[int, float]:
        """Observations and their sum."""
        histogram = self.tally.series.histograms(family, "m")[labels]
        return histogram.count, round(histogram.sum, 6)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def run_answer(bench: Bench) -> None:
    """Waits 1 s, is read for 4 s in two steps, gets 1, 3 and 2 tokens over 3 s, and ends 0.5 s later."""
    bench.open()
    bench.now += 1
    bench.step(2, bench.chunk(60, 60), prefill=60)
    bench.step(2, bench.chunk(100, 40), bench.tokens(bench.now + 2), prefill=40)
    bench.step(1, bench.tokens(bench.now + 1, 3, drafted=3))
    bench.step(2, bench.tokens(bench.now + 2, 2, drafted=1))
    bench.now += 0.5
    bench.end("stop")


def test_a_whole_answer_is_counted_with_its_times(bench: Bench) -> None:
    run_answer(bench)
    assert bench.count(families.PROMPT_TOKENS, "m") == 100
    assert bench.count(families.GENERATION_TOKENS, "m") == 6
    assert bench.count(families.REQUEST_SUCCESS, "m", "stop") == 1
    assert bench.seen(families.QUEUE_TIME, "m") == (1, 1)
    assert bench.seen(families.PREFILL_TIME, "m") == (1, 4)
    assert bench.seen(families.TIME_TO_FIRST_TOKEN, "m") == (1, 5)
    assert bench.seen(families.DECODE_TIME, "m") == (1, 3)
    assert bench.seen(families.REQUEST_LATENCY, "m") == (1, 8.5)
    assert bench.seen(families.REQUEST_PROMPT_TOKENS, "m") == (1, 100)
    assert bench.seen(families.REQUEST_GENERATION_TOKENS, "m") == (1, 6)


def test_tokens_of_one_step_are_one_emission_and_the_time_per_token_is_told_apart(bench: Bench) -> None:
    run_answer(bench)
    assert bench.seen(families.INTER_TOKEN_LATENCY, "m") == (2, 3)
    assert bench.seen(families.TIME_PER_OUTPUT_TOKEN, "m") == (1, 3 / 5)


def test_drafts_are_counted_by_step_by_token_and_by_place(bench: Bench) -> None:
    run_answer(bench)
    assert bench.count(families.DRAFTS, "m") == 2
    assert bench.count(families.DRAFT_TOKENS, "m") == 4
    assert bench.count(families.ACCEPTED_TOKENS, "m") == 3
    places = [bench.count(families.ACCEPTED_TOKENS_PER_POS, "m", str(place)) for place in range(3)]
    assert places == [2, 1, 0]


def test_acceptance_is_told_while_something_decodes(bench: Bench) -> None:
    bench.open()
    assert bench.tally.acceptance_ratio is None
    bench.step(1, bench.chunk(100, 100), bench.tokens(bench.now + 1), prefill=100)
    assert bench.tally.acceptance_ratio is None, "nothing was drafted"
    bench.step(1, bench.tokens(bench.now + 1, 2, drafted=4))
    assert bench.tally.acceptance_ratio == 0.25
    bench.end("length")
    assert bench.tally.acceptance_ratio is None


def test_tokens_taken_over_are_read_but_cached_whoever_had_them(bench: Bench) -> None:
    bench.open()
    bench.step(1, PromptLookedUp("r", 30, 30, ""), bench.chunk(30, 0, cached=30), bench.chunk(40, 10), prefill=10)
    bench.step(1, bench.chunk(90, 0, cached=80), bench.chunk(100, 10), prefill=10)
    assert bench.count(families.PREFIX_CACHE_QUERIES, "m") == 100
    assert bench.count(families.PREFIX_CACHE_HITS, "m") == 30
    assert bench.count(families.PROMPT_TOKENS, "m") == 100
    assert bench.count(families.CACHED_PROMPT_TOKENS, "m") == 80


def test_a_cancel_is_counted_in_the_phase_it_met(bench: Bench) -> None:
    for request_id in ("waits", "reads", "decodes"):
        bench.open(request_id)
    bench.step(1, bench.chunk(9, 9, request_id="reads"), bench.chunk(100, 100, request_id="decodes"), prefill=9)
    bench.step(1, bench.tokens(bench.now + 1, request_id="decodes"))
    for request_id in ("waits", "reads", "decodes"):
        bench.tally.stream_ended(request_id, "cancelled")
    assert [bench.count(families.CANCELLED, phase) for phase in ("waiting", "prefill", "decode")] == [1, 1, 1]
    assert bench.count(families.REQUEST_SUCCESS, "m", "abort") == 3
    assert bench.seen(families.REQUEST_LATENCY, "m") == (0, 0), "what was cut says nothing of whole answers"


def test_what_the_engine_still_does_for_a_stream_that_was_left_is_counted(bench: Bench) -> None:
    bench.open()
    bench.step(1, bench.chunk(100, 100), bench.tokens(bench.now + 1), prefill=100)
    bench.tally.stream_ended("r", "cancelled")
    bench.step(1, bench.tokens(bench.now + 1, 2))
    assert bench.count(families.GENERATION_TOKENS, "m") == 3
    assert bench.tally.followed == 1
    bench.tally.fold((SequenceEnded("r", "cancelled", bench.now),))
    assert bench.tally.followed == 0


def test_a_failure_has_its_cause(bench: Bench) -> None:
    for request_id in ("alone", "with the engine", "made wrong"):
        bench.open(request_id)
    bench.end("failed", "alone")
    bench.tally.stream_ended("made wrong", "failed")
    bench.tally.fold((EngineDied("out of memory"),))
    bench.tally.stream_ended("with the engine", "failed")
    codes = ("sequence_failed", "engine_dead", "other")
    assert [bench.count(families.FAILED, code) for code in codes] == [1, 1, 1]
    assert bench.tally.followed == 0


def test_the_first_word_on_an_end_counts(bench: Bench) -> None:
    bench.open()
    bench.tally.stream_ended("r", "stop")
    bench.tally.stream_ended("r", "cancelled")
    assert bench.count(families.REQUEST_SUCCESS, "m", "stop") == 1
    assert bench.count(families.REQUEST_SUCCESS, "m", "abort") == 0


@pytest.mark.parametrize(
    ("prefill", "sequences", "work"), [(9, 1, "prefill"), (0, 1, "decode"), (0, 3, "decode"), (9, 2, "mixed")]
)
def test_a_step_is_timed_by_what_was_in_it(bench: Bench, prefill: int, sequences: int, work: str) -> None:
    bench.step(0.25, prefill=prefill, sequences=sequences)
    assert bench.seen(families.STEP, work) == (1, 0.25)
    assert sum(each.count for each in bench.tally.series.histograms(families.STEP, "m").values()) == 1


def test_a_step_with_nothing_in_it_is_none(bench: Bench) -> None:
    bench.step(0.25, sequences=0)
    assert sum(each.count for each in bench.tally.series.histograms(families.STEP, "m").values()) == 0


def test_a_refusal_is_counted_by_its_code(bench: Bench) -> None:
    for code in ("in_flight_full", "in_flight_full", "draining"):
        bench.tally.refused(Refused(0.0, "r", code, "", 429, 1, 2, 2, "s", "unknown", "c", 0, None))
    assert bench.count(families.REFUSED, "in_flight_full") == 2
    assert bench.count(families.REFUSED, "draining") == 1


def test_events_of_streams_that_never_were_change_nothing(bench: Bench) -> None:
    bench.step(1, bench.chunk(9, 9), bench.tokens(1.0), SequenceEnded("r", "stop", 1.0), PromptLookedUp("r", 1, 1, ""))
    bench.tally.stream_ended("r", "stop")
    assert bench.count(families.PROMPT_TOKENS, "m") == bench.count(families.GENERATION_TOKENS, "m") == 0


ENDS: dict[str, Outcome] = {"stop": "stop", "cancelled": "cancelled", "failed": "failed"}


def count_all(tally: Tally) -> dict[tuple[str, ...], float]:
    """Every value that may only rise."""
    series = tally.series
    counters = [family for family in FAMILIES if family.kind == "counter"]
    histograms = [family for family in FAMILIES if family.kind == "histogram"]
    counts = {(f.name, *labels): value for f in counters for labels, value in series.counts(f, "m").items()}
    for family in histograms:
        for labels, each in series.histograms(family, "m").items():
            counts[(family.name, *labels)] = each.count
    return counts


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "chunk", "token", "leave", "die", *ENDS]),
            st.sampled_from(["a", "b", "c"]),
            st.integers(1, 50),
        ),
        max_size=60,
    )
)
def test_whatever_happens_nothing_falls_and_nothing_is_kept(story: list[tuple[str, str, int]]) -> None:
    bench, before, ids = Bench(), dict[tuple[str, ...], float](), dict[str, str]()
    for number, (act, name, amount) in enumerate(story):
        request_id = ids.get(name, name)
        match act:
            case "open":  # an id is used once
                ids[name] = f"{name}{number}"
                bench.open(ids[name], model=f"m{amount % 3}")
            case "chunk":
                bench.step(amount, bench.chunk(amount, amount, amount // 2, request_id), prefill=amount)
            case "token":
                bench.step(amount, bench.tokens(bench.now + amount, 1 + amount % 5, 4, request_id))
            case "leave":
                bench.tally.fold((SequenceEnded(request_id, "stop", bench.now),))
            case "die":
                bench.tally.fold((EngineDied(""),))
            case _:
                bench.tally.stream_ended(request_id, ENDS[act])
        after = count_all(bench.tally)
        assert all(after[key] >= value for key, value in before.items())
        before = after
    bench.tally.fold((EngineDied(""),))
    for name in "abc":
        for opened in [f"{name}{place}" for place in range(len(story))]:
            bench.tally.stream_ended(opened, "stop")
    assert bench.tally.followed == 0
