"""Telemetry under a clock in hand: phases, rates, histories, counts, and that nothing piles up."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.events import (
    DraftingChanged,
    EngineDied,
    EventRing,
    MemorySampled,
    PrefillAdvanced,
    PrefixCacheSampled,
    PromptLookedUp,
    PromptShared,
    Refused,
    SequenceEnded,
    StepCost,
    StepDone,
    StreamEnded,
    TokensEmitted,
)
from server.rates import (
    RATE_ROUNDS,
    RATE_WINDOW_S,
    DecodeHistory,
    RecentRounds,
    RecentSteps,
    RecentTokens,
    SecondCounts,
)
from server.snapshot import LinePlace, ModelView, PolicyView, Snapshot, StreamView
from server.telemetry import ServerFacts, StreamIdentity, Telemetry

MODEL = ModelView(
    id="m",
    path="/m",
    state="ready",
    detail="",
    architecture="a",
    dtype="float32",
    quantization="",
    parameters=1,
    weights_bytes=4,
    context_limit_tokens=4096,
    effective_context_limit_tokens=2048,
    device="cpu",
    mtp="no",
    embedded=False,
    load_s=None,
)
FACTS = ServerFacts(
    state="serving",
    host="127.0.0.1",
    port=1,
    version="0",
    in_flight=1,
    max_in_flight=2,
    peak_in_flight=1,
    admitted_total=1,
    policy=PolicyView(path="", exists=False, etag="", problem=None, values={}),
    model=MODEL,
    engine_alive=True,
    engine_error=None,
    resident_bytes=10,
    machine_bytes=20,
)


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Bench:
    """A telemetry with its clock and its ring."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ring = EventRing()
        self.telemetry = Telemetry(self.ring, self.clock, lambda: 5000.0)

    def open(self, request_id: str = "r", **changes: Any) -> None:
        identity: dict[str, Any] = {
            "session": "s",
            "parent_session": None,
            "lane": "unknown",
            "client": "curl",
            "model": "m",
            "prompt_tokens": 100,
            "cached_tokens": 0,
            "max_tokens": 50,
            "context_limit_tokens": 2048,
            "streaming": True,
            "arrived_s": 4990.0,
        }
        self.telemetry.stream_opened(request_id, StreamIdentity(**(identity | changes)))

    def prefill(self, done: int, chunk: int, seconds: float, request_id: str = "r") -> None:
        self.clock.now += seconds
        self.telemetry.fold((PrefillAdvanced(request_id, done, chunk, seconds),))

    def token(self, count: int = 1, request_id: str = "r") -> None:
        self.telemetry.fold((TokensEmitted(request_id, tuple(range(count)), self.clock.now),))

    def step(self, seconds: float, prefill: int = 0, decode: int = 0) -> None:
        self.clock.now += seconds
        self.telemetry.fold((StepDone(self.clock.now, seconds, prefill, decode, 1),))

    def snapshot(self) -> Snapshot:
        return self.telemetry.build_snapshot(FACTS)

    def stream(self, request_id: str = "r") -> StreamView:
        return next(view for view in self.telemetry.streams() if view.id == request_id)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_stream_goes_through_its_phases_with_its_counts(bench: Bench):
    bench.open(cached_tokens=40)
    waiting = bench.stream()
    assert (waiting.phase, waiting.prefill_done_tokens, waiting.context_tokens) == ("waiting", 40, 40)
    assert (waiting.prefill_tps, waiting.decode_tps, waiting.ttft_s) == (None, None, None)

    bench.prefill(done=70, chunk=30, seconds=0.5)
    prefill = bench.stream()
    assert (prefill.phase, prefill.prefill_done_tokens, prefill.context_tokens) == ("prefill", 70, 70)

    bench.prefill(done=100, chunk=30, seconds=0.5)
    bench.token(2)
    decode = bench.stream()
    assert (decode.phase, decode.completion_tokens, decode.context_tokens) == ("decode", 2, 102)
    assert decode.ttft_s == pytest.approx(1.0)
    assert decode.decode_tps is None, "one emission is not a rate yet"

    bench.clock.now += 1
    bench.telemetry.stream_ended("r", "stop")
    bench.clock.now += 3
    finished = bench.stream()
    assert (finished.phase, finished.outcome, finished.finished_ago_s) == ("finished", "stop", 3.0)
    assert finished.age_s == pytest.approx(2.0), "the age stands still once it is over"


def test_prefill_rate_is_of_computed_tokens_by_the_clock(bench: Bench):
    bench.open(cached_tokens=40, prompt_tokens=200)
    bench.clock.now += 30
    bench.prefill(done=104, chunk=64, seconds=0.4)
    assert bench.stream().prefill_tps == pytest.approx(160), "neither cached tokens nor the wait for the first chunk"
    bench.clock.now += 1.6
    assert bench.stream().prefill_tps == pytest.approx(64 / 1.6), "a turn that does not come is felt"
    bench.prefill(done=200, chunk=96, seconds=0.4)
    assert bench.stream().prefill_tps == pytest.approx(160 / 2.4)
    bench.token()
    bench.clock.now += 60
    assert bench.stream().prefill_tps == pytest.approx(160 / 2.4), "it stands once the prompt is read"


@pytest.mark.parametrize("prompts", [1, 2, 3, 8])
def test_prompts_that_take_turns_add_up_to_the_rate_of_the_engine(bench: Bench, prompts: int):
    names = [f"r{number}" for number in range(prompts)]
    for name in names:
        bench.open(name, prompt_tokens=100_000)
    rates: list[float] = []
    for done in range(200, 4001, 200):
        for name in names:
            bench.clock.now += 0.5
            at_s = bench.clock.now
            bench.telemetry.fold((StepDone(at_s, 0.5, 200, 0, 1), PrefillAdvanced(name, done, 200, 0.5)))
            rates = [bench.stream(each).prefill_tps or 0 for each in names]
            assert sum(rates) <= 2 * 400, "in the first moments too"
    assert sum(rates) == pytest.approx(bench.snapshot().rates.prefill_tps, rel=0.1)
    assert rates == pytest.approx([400 / prompts] * prompts, rel=0.1)


def test_a_prompt_that_was_read_has_the_rate_of_the_whole(bench: Bench):
    bench.open(prompt_tokens=4000)
    for done, seconds in ((1000, 1.0), (2000, 30.0), (3000, 1.0), (4000, 1.0)):
        bench.prefill(done, 1000, seconds)
    assert bench.stream().prefill_tps == pytest.approx(3000 / 32)
    bench.token()
    assert bench.stream().prefill_tps == pytest.approx(4000 / 33)


def test_a_prompt_that_waited_for_one_that_goes_first_has_its_own_rate_at_once(bench: Bench):
    bench.open("parent", prompt_tokens=4000)
    bench.open("child", prompt_tokens=4000)
    for done in range(400, 4001, 400):
        bench.prefill(done, 400, 1.0, "parent")
        assert bench.stream("child").prefill_tps is None
    bench.token(1, "parent")
    bench.prefill(400, 400, 1.0, "child")
    assert bench.stream("child").prefill_tps == pytest.approx(400)


def test_a_prompt_read_by_another_stream_has_no_rate_of_its_own(bench: Bench):
    bench.open(prompt_tokens=2788)
    shared = PromptShared("r", None, "2,787 of 2,788 tokens: another stream computed them")
    bench.clock.now += 3
    bench.telemetry.fold((PromptLookedUp("r", 512, 512, "x"), shared, PrefillAdvanced("r", 2787, 0, 0.0, 2787)))
    bench.prefill(done=2788, chunk=1, seconds=0.02)
    stream = bench.stream()
    assert (stream.reuse, stream.diverged_at, stream.cached_tokens) == (shared.detail, None, 2787)
    assert stream.prefill_tps is None


def test_tokens_taken_over_from_another_prompt_are_cached_and_make_no_rate(bench: Bench):
    bench.open(prompt_tokens=200)
    bench.telemetry.fold((PrefillAdvanced("r", 150, 0, 0.0, cached_tokens=150),))
    forked = bench.stream()
    assert (forked.phase, forked.cached_tokens, forked.prefill_done_tokens) == ("prefill", 150, 150)
    assert forked.prefill_tps is None
    bench.prefill(done=200, chunk=50, seconds=0.5)
    assert (bench.stream().cached_tokens, bench.stream().prefill_tps) == (150, pytest.approx(100.0))


def test_decode_rate_follows_the_last_32_tokens_not_the_whole_life(bench: Bench):
    bench.open()
    for _ in range(50):
        bench.clock.now += 0.09
        bench.token()
    for _ in range(40):
        bench.clock.now += 0.02
        bench.token()
    assert bench.stream().decode_tps == pytest.approx(50.0)


@given(gap=st.floats(0.01, 1.5), phase=st.floats(0, 0.99), tokens=st.integers(1, 4))
def test_a_steady_stream_reads_the_same_at_and_between_its_tokens(gap: float, phase: float, tokens: int):
    recent = RecentTokens()
    for index in range(60):
        recent.add(100 + index * gap, tokens)
    assert recent.rate(100 + (59 + phase) * gap) == pytest.approx(tokens / gap, rel=1e-6)


@given(gaps=st.lists(st.floats(0.001, 2), min_size=1, max_size=80), waits=st.lists(st.floats(0, 1), max_size=20))
def test_the_rate_is_never_negative_or_above_what_came_and_is_zero_after_the_window(
    gaps: list[float], waits: list[float]
):
    recent, now = RecentTokens(), 50.0
    recent.add(now, 1)
    for gap in gaps:
        now += gap
        recent.add(now, 1)
    last = now
    for wait in waits:
        now += wait
        rate = recent.rate(now)
        assert rate is not None
        assert 0 <= rate <= 1 / min(gaps) * 1.001
    assert recent.rate(last + RATE_WINDOW_S + 0.001) == 0.0


def test_the_rate_falls_as_soon_as_tokens_stop(bench: Bench):
    bench.open()
    for _ in range(64):
        bench.clock.now += 0.1
        bench.token()
    rates: list[float] = []
    for _ in range(12):
        rates.append(bench.stream().decode_tps or 0.0)
        bench.clock.now += 0.5
    assert rates[0] == pytest.approx(10)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[:11]))
    assert rates[-1] == 0.0
    assert bench.stream().idle_s == pytest.approx(6.0)


def test_the_rate_recovers_when_tokens_come_back_after_a_pause(bench: Bench):
    bench.open()
    bench.token()
    bench.clock.now += 30
    for _ in range(33):
        bench.clock.now += 0.02
        bench.token()
    assert bench.stream().decode_tps == pytest.approx(50, rel=0.01)


def test_stream_history_has_one_value_per_second_since_its_first_token_and_at_most_60(bench: Bench):
    bench.open()
    bench.clock.now += 7
    bench.token()
    assert bench.stream().decode_history_tps == ()
    for tokens in (3, 0, 4, 5):
        bench.clock.now += 1
        bench.token(tokens)
    assert bench.stream().decode_history_tps == (3, 2, 2, 5), "what comes after a gap is spread over it"
    bench.clock.now += 100
    assert bench.stream().decode_history_tps == (0.0,) * 60


@pytest.mark.parametrize(("tokens", "gap_s"), [(20, 0.005), (100, 0.02), (100, 0.016), (2, 0.3), (700, 0.1)])
def test_a_reply_has_a_history_and_a_mean_that_agree_whatever_its_length(bench: Bench, tokens: int, gap_s: float):
    bench.open()
    bench.clock.now += 0.37
    bench.token()
    gaps = [gap_s if place < tokens // 2 else gap_s / 2 for place in range(1, tokens)]
    for gap in gaps:
        bench.clock.now += gap
        bench.token()
    bench.clock.now += 0.4
    bench.telemetry.stream_ended("r", "length")
    stream = bench.stream()
    assert stream.decode_history_tps
    assert stream.decode_tps is not None
    assert stream.decode_tps == pytest.approx(len(gaps) / sum(gaps))
    assert stream.decode_tps <= max(stream.decode_history_tps) * 1.001 <= 2 / gap_s * 1.002


@given(gaps=st.lists(st.floats(0.0005, 3), max_size=90), counts=st.lists(st.integers(1, 5), min_size=91, max_size=91))
def test_no_mean_is_above_the_peak_and_no_value_above_the_shortest_gap(gaps: list[float], counts: list[int]):
    history, now = DecodeHistory(), 100.0
    history.add(now, counts[0])
    for gap, count in zip(gaps, counts[1:], strict=False):
        now += gap
        history.add(now, count)
    values, mean = history.close()
    assert len(values) <= 60
    assert (mean is None) == (not gaps)
    if mean is not None:
        assert mean <= max(values) * (1 + 1e-9)
        assert max(values) <= max(count / gap for gap, count in zip(gaps, counts[1:], strict=False)) * (1 + 1e-6)


@given(
    steps=st.lists(st.tuples(st.floats(0.001, 3), st.integers(0, 300), st.floats(0, 2)), max_size=60),
    keep=st.integers(1, 400),
)
def test_second_counts_lose_no_token_within_what_they_keep(steps: list[tuple[float, int, float]], keep: int):
    counts, now, total = SecondCounts(7.25, keep), 7.25, 0
    for seconds, tokens, pause in steps:
        counts.add(now, now + seconds, tokens)
        now += seconds + pause
        total += tokens
    history = counts.history(now + 1)
    assert len(history) <= keep
    if now + 1 - 7.25 <= keep:
        assert sum(history) == pytest.approx(total)


def test_total_rates_look_back_two_seconds_and_fill_the_seconds_of_a_long_step(bench: Bench):
    bench.open()
    bench.step(4.0, prefill=400)
    rates = bench.snapshot().rates
    assert rates.prefill_tps == pytest.approx(100)
    assert rates.prefill_history_tps == pytest.approx((100, 100, 100, 100))
    assert (rates.prefill_tokens_total, rates.decode_tokens_total) == (400, 0)


def test_total_rate_holds_while_the_next_long_step_runs_and_drops_when_idle():
    steps = RecentSteps()
    steps.add(103.0, 3.0, 300)
    steps.add(106.0, 3.0, 300)
    assert steps.rate(108.5, busy=True) == pytest.approx(100)
    assert steps.rate(107.0, busy=False) == pytest.approx(50)
    assert steps.rate(112.0, busy=True) == 0.0


def test_step_age_counts_from_the_work_not_from_the_idle_time_before_it(bench: Bench):
    bench.open("a")
    bench.step(0.1, decode=1)
    bench.telemetry.fold((SequenceEnded("a", "stop", bench.clock.now),))
    bench.telemetry.stream_ended("a", "stop")
    assert bench.snapshot().engine.step_age_s is None
    bench.clock.now += 500
    bench.open("b")
    bench.clock.now += 2
    engine = bench.snapshot().engine
    assert (engine.busy, engine.step_age_s, engine.step_s) == (True, 2.0, 0.1)


def test_a_stream_that_its_client_left_still_keeps_the_engine_busy(bench: Bench):
    bench.open()
    bench.telemetry.stream_ended("r", "cancelled", "client closed the connection")
    assert bench.snapshot().engine.busy
    bench.telemetry.fold((SequenceEnded("r", "cancelled", bench.clock.now),))
    assert not bench.snapshot().engine.busy


def test_late_events_of_a_finished_stream_change_nothing(bench: Bench):
    bench.open()
    bench.telemetry.stream_ended("r", "cancelled")
    before = bench.stream()
    bench.token(5)
    bench.telemetry.fold((PrefillAdvanced("r", 100, 100, 0.1), TokensEmitted("never", (1,), 1.0)))
    assert bench.stream() == before


def test_an_end_is_announced_with_its_numbers(bench: Bench):
    bench.open(prompt_tokens=1000)
    bench.prefill(done=400, chunk=400, seconds=1)
    bench.token(3)
    bench.clock.now += 1
    bench.telemetry.stream_ended("r", "cancelled", "client closed the connection")
    (entry,) = bench.ring.after(0)
    assert isinstance(entry.notice, StreamEnded)
    assert (entry.notice.outcome, entry.notice.detail) == ("cancelled", "client closed the connection")
    assert (entry.notice.completion_tokens, entry.notice.ttft_s, entry.notice.age_s) == (3, 1.0, 2.0)


def test_beginning_and_end_of_a_stream_are_told_at_once():
    told: list[int] = []
    telemetry = Telemetry(EventRing(), Clock(), lambda: 0.0, on_change=lambda: told.append(len(telemetry.streams())))
    bench = Bench()
    bench.telemetry = telemetry
    bench.open()
    bench.token()
    bench.telemetry.stream_ended("r", "stop")
    assert told == [1, 1]
    assert telemetry.open_streams == 0


def test_the_first_word_on_an_end_counts_and_later_ones_do_not(bench: Bench):
    bench.open()
    bench.telemetry.stream_ended("r", "cancelled")
    bench.telemetry.stream_ended("r", "failed", "late")
    assert bench.snapshot().admission.finished_by_outcome == {"cancelled": 1}
    assert len(bench.ring.after(0)) == 1


IN_LINE = StreamIdentity("s", None, "parent", "curl", "m", 100, 0, 50, 2048, True, 4990.0, depth=1)


def test_a_request_in_line_is_a_row_whose_time_goes_on_when_it_is_let_in(bench: Bench):
    bench.open("first")
    bench.telemetry.stream_waiting("r", IN_LINE)
    bench.clock.now += 3
    line = {"r": LinePlace(4, 12.5)}
    shown = bench.telemetry.build_snapshot(msgspec.structs.replace(FACTS, line=line)).streams[1]
    assert (shown.phase, shown.queue_position, shown.expected_wait_s, shown.age_s) == ("waiting", 4, 12.5, 3)
    assert (shown.prompt_tokens, shown.session, shown.lane) == (100, "s", "parent")
    bench.open()
    assert bench.stream().queue_position is None
    bench.token()
    assert bench.stream().ttft_s == 3


def test_a_prompt_in_line_takes_no_turns_from_one_that_is_read(bench: Bench):
    bench.telemetry.stream_waiting("queued", IN_LINE)
    bench.open("r", prompt_tokens=1000)
    bench.clock.now += 5
    bench.prefill(100, 100, 1.0)
    assert bench.stream().prefill_tps == pytest.approx(100)


def test_one_that_leaves_the_line_was_never_in_flight(bench: Bench):
    bench.telemetry.stream_waiting("refused", IN_LINE)
    bench.telemetry.stream_waiting("gone", IN_LINE)
    assert bench.telemetry.step_age_s is None, "the engine has nothing"
    bench.telemetry.stream_left("refused")
    bench.telemetry.stream_left("gone", "cancelled", "it left")
    (shown,) = bench.snapshot().streams
    assert (shown.id, shown.outcome, shown.outcome_detail, shown.queue_position) == (
        "gone",
        "cancelled",
        "it left",
        None,
    )
    assert bench.telemetry.find("gone") == shown
    assert bench.telemetry.find("refused") is None
    assert bench.snapshot().admission.finished_by_outcome == {}
    assert bench.telemetry.open_streams == 0
    bench.telemetry.stream_left("gone", "failed", "again")
    assert len(bench.snapshot().streams) == 1


def test_refusals_are_counted_by_code_and_kept_newest_first(bench: Bench):
    for number in range(60):
        bench.telemetry.refused(
            Refused(
                time_s=float(number),
                request_id=f"r{number}",
                code="in_flight_full" if number % 2 else "model_loading",
                message="no",
                status=429,
                retry_after_s=1,
                limit=2,
                used=2,
                session="s",
                lane="unknown",
                client="c",
                prompt_tokens=1,
                max_tokens=None,
            )
        )
    admission = bench.snapshot().admission
    assert admission.refused_total == 60
    assert admission.refused_by_code == {"in_flight_full": 30, "model_loading": 30}
    assert [refused.request_id for refused in admission.recent_refusals[:2]] == ["r59", "r58"]
    assert len(admission.recent_refusals) == 50


def test_memory_is_what_mlx_and_the_process_said_last(bench: Bench):
    bench.telemetry.fold((MemorySampled(1, 2, 3), MemorySampled(4, 5, 6)))
    memory = bench.snapshot().memory
    assert (memory.active_bytes, memory.cache_bytes, memory.peak_bytes) == (4, 5, 6)
    assert (memory.resident_bytes, memory.machine_bytes) == (10, 20)


def test_an_engine_death_leaves_no_work_behind(bench: Bench):
    bench.open("a")
    bench.telemetry.fold((EngineDied("out of memory"),))
    bench.telemetry.stream_ended("a", "failed", "out of memory")
    bench.open("b")
    bench.telemetry.stream_ended("b", "failed", "out of memory")
    assert not bench.snapshot().engine.busy


def test_2000_short_streams_leave_nothing(bench: Bench):
    for number in range(2000):
        request_id = f"r{number}"
        bench.open(request_id)
        bench.token(3, request_id)
        bench.telemetry.stream_ended(request_id, "cancelled" if number % 2 else "stop")
        bench.telemetry.fold((SequenceEnded(request_id, "stop", bench.clock.now),))
        assert len(bench.telemetry.streams()) <= 50
    bench.clock.now += 8
    snapshot = bench.snapshot()
    assert snapshot.streams == ()
    assert snapshot.admission.finished_by_outcome == {"stop": 1000, "cancelled": 1000}
    assert not snapshot.engine.busy
    assert not bench.telemetry._open
    assert not bench.telemetry._engine._held
    assert not bench.telemetry._finished


def test_snapshots_are_numbered_and_carry_both_clocks(bench: Bench):
    first = bench.snapshot()
    bench.clock.now += 1.5
    second = bench.snapshot()
    assert (first.sequence, second.sequence) == (1, 2)
    assert second.monotonic_s == bench.clock.now
    assert (second.uptime_s, second.time_s) == (1.5, 5000.0)


def test_streams_in_flight_stand_before_finished_ones_in_order_of_admission(bench: Bench):
    for request_id in ("a", "b", "c"):
        bench.open(request_id)
    bench.telemetry.stream_ended("a", "stop")
    assert [view.id for view in bench.telemetry.streams()] == ["b", "c", "a"]


def test_acceptance_is_told_by_depth_and_as_a_whole():
    rounds = RecentRounds()
    for drafted, accepted in ((3, 3), (3, 1), (1, 1), (0, 0), (3, 0)):
        rounds.add(drafted, accepted, accepted + 1)
    assert rounds.depth == 3
    assert rounds.acceptance() == pytest.approx(5 / 10)
    assert rounds.acceptance_by_depth() == pytest.approx((3 / 4, 1 / 3, 1 / 3))
    assert rounds.tokens_per_step() == pytest.approx(10 / 5)


def test_without_drafts_there_is_no_acceptance_and_before_a_step_nothing():
    rounds = RecentRounds()
    assert (rounds.depth, rounds.acceptance(), rounds.acceptance_by_depth(), rounds.tokens_per_step()) == (
        (None, None, (), None)
    )
    rounds.add(0, 0, 1)
    assert (rounds.depth, rounds.acceptance(), rounds.acceptance_by_depth()) == (0, None, ())
    assert rounds.tokens_per_step() == 1


def test_old_rounds_are_forgotten():
    rounds = RecentRounds()
    for accepted in (0, 2):
        for _ in range(RATE_ROUNDS):
            rounds.add(2, accepted, accepted + 1)
    assert rounds.acceptance() == 1
    assert rounds.tokens_per_step() == 3


def test_a_stream_tells_what_it_drafts_and_why_not(bench: Bench):
    bench.open()
    assert (bench.stream().mtp, bench.stream().draft_depth, bench.stream().tokens_per_step) == ("", None, None)
    bench.telemetry.fold((TokensEmitted("r", (1,), bench.clock.now), DraftingChanged("r", "on")))
    assert (bench.stream().mtp, bench.stream().tokens_per_step) == ("on", None)  # the prompt's token is no decode step
    for accepted in (2, 1):
        bench.telemetry.fold((TokensEmitted("r", tuple(range(accepted + 1)), bench.clock.now, 2, accepted),))
    drafting = bench.stream()
    assert (drafting.draft_depth, drafting.acceptance_ratio) == (2, 0.75)
    assert drafting.acceptance_by_depth == (1.0, 0.5)
    assert drafting.tokens_per_step == 2.5
    assert drafting.completion_tokens == 6
    bench.telemetry.fold((DraftingChanged("r", "off: it loses"), DraftingChanged("nobody", "on")))
    assert bench.stream().mtp == "off: it loses"


def test_the_engine_tells_tokens_per_step_and_what_steps_cost(bench: Bench):
    assert bench.snapshot().engine.tokens_per_step is None
    assert bench.snapshot().engine.cost == StepCost()
    cost = StepCost(step_s=0.01, error_ratio=0.1, steps=7)
    steps = (StepDone(1.0, 0.1, 0, 5, 2, 2), StepDone(1.1, 0.1, 64, 0, 1, 0), StepDone(1.2, 0.1, 0, 1, 1, 1))
    bench.telemetry.fold((*steps, cost))
    engine = bench.snapshot().engine
    assert engine.tokens_per_step == 2.0
    assert engine.cost == cost


def test_what_was_reused_is_told_with_where_the_prompt_parted(bench: Bench):
    bench.open(prompt_tokens=100)
    assert (bench.stream().reuse, bench.stream().diverged_at, bench.stream().cached_tokens) == ("", None, 0)
    looked_up = PromptLookedUp("r", 60, 71, "60 of 100 tokens")
    bench.telemetry.fold((looked_up, PrefillAdvanced("r", 60, 0, 0.0, cached_tokens=60)))
    bench.telemetry.fold((PromptLookedUp("nobody", 1, None, "x"),))
    bench.prefill(done=100, chunk=40, seconds=0.5)
    stream = bench.stream()
    assert (stream.reuse, stream.diverged_at, stream.cached_tokens) == ("60 of 100 tokens", 71, 60)
    bench.telemetry.stream_ended("r", "stop")
    (entry,) = bench.ring.after(0)
    assert isinstance(entry.notice, StreamEnded)
    assert entry.notice.reuse == "60 of 100 tokens"
    assert stream.prefill_tps == 80


def test_what_the_prefix_cache_holds_is_in_the_snapshot(bench: Bench):
    bench.telemetry.fold((PrefixCacheSampled(memory_bytes=5, budget_bytes=7, disk_bytes=9),))
    memory = bench.telemetry.build_snapshot(FACTS).memory
    held = memory.prefix_cache_bytes, memory.prefix_cache_budget_bytes, memory.prefix_cache_disk_bytes
    assert held == (5, 7, 9)


def test_an_end_tells_what_the_whole_stream_did(bench: Bench):
    bench.telemetry.stream_waiting("r", IN_LINE)
    bench.clock.now += 2.5
    bench.open(parent_session="p", key="k", lane="child", arrived_s=4990.0, depth=1)
    bench.telemetry.fold((PrefillAdvanced("r", 100, 64, 2.0, 36),))
    bench.clock.now += 2.0
    bench.token()
    # More rounds than the recent acceptance looks at: these count from the first on.
    for number in range(RATE_ROUNDS + 40):
        bench.clock.now += 0.1
        emitted = TokensEmitted("r", (1, 2), bench.clock.now, drafted_tokens=2, accepted_tokens=int(number < 40))
        bench.telemetry.fold((emitted,))
    bench.clock.now += 60.0  # how long nobody read its end is no part of its rate
    bench.telemetry.stream_ended("r", "stop")
    (entry,) = bench.ring.after(0)
    ended = entry.notice
    assert isinstance(ended, StreamEnded)
    assert (ended.parent_session, ended.key, ended.model, ended.depth) == ("p", "k", "m", 1)
    assert (ended.arrived_s, ended.waited_s, ended.max_tokens, ended.cached_tokens) == (4990.0, 2.5, 50, 36)
    assert (ended.drafted_tokens, ended.accepted_tokens) == (2 * (RATE_ROUNDS + 40), 40)
    assert ended.decode_tps == pytest.approx(20.0)
    assert ended.prefill_tps == pytest.approx(64 / 2.0)
    assert ended.upstream == ""


def test_an_end_before_any_token_has_no_rates(bench: Bench):
    bench.open()
    bench.telemetry.stream_ended("r", "cancelled")
    (entry,) = bench.ring.after(0)
    assert isinstance(entry.notice, StreamEnded)
    assert (entry.notice.decode_tps, entry.notice.prefill_tps, entry.notice.arrived_s) == (None, None, 4990.0)
