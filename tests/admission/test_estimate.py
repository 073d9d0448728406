from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import Asked, Held, Load
from server.admission.estimate import (
    COURSES,
    UNKNOWN_S,
    Ends,
    Rates,
    clamp_wait_s,
    estimate_ends,
    estimate_line_s,
    estimate_stream_s,
    estimate_wait_s,
    estimate_waits_s,
)
from server.admission.lengths import UNKNOWN_TOKENS, Lengths
from server.admission.place import Place
from server.admission.slots import Admission
from server.errors import Refusal
from server.policy import AdmissionPolicy, SubagentPolicy
from server.snapshot import StreamView


def stream(**changes: Any) -> StreamView:
    fields: dict[str, Any] = {
        "id": "r",
        "session": "s",
        "parent_session": None,
        "lane": "unknown",
        "client": "c",
        "model": "m",
        "phase": "decode",
        "context_tokens": 100,
        "context_limit_tokens": 4096,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "max_tokens": 100,
        "prefill_done_tokens": 100,
        "prefill_tps": 50.0,
        "decode_tps": 10.0,
        "ttft_s": 0.1,
        "age_s": 1.0,
        "idle_s": 0.0,
        "streaming": True,
        "decode_history_tps": (),
    }
    return StreamView(**{**fields, **changes})


def hold(*names: str, parent: str | None = None) -> tuple[Held, ...]:
    return tuple(Held(name, place(f"session {name}", parent)) for name in names)


def place(session: str = "new", parent: str | None = None) -> Place:
    return Place(session, parent, int(parent is not None), "child" if parent else "parent", "c", "")


@pytest.mark.parametrize(
    ("changes", "left", "seconds"),
    [
        ({}, 100, 10.0),
        ({}, 40, 4.0),
        ({}, 0, 0.0),
        ({"decode_tps": None}, 100, UNKNOWN_S),
        ({"phase": "prefill", "prefill_done_tokens": 0, "decode_tps": None}, 100, 2.0),
        ({"phase": "prefill", "prefill_done_tokens": 0, "prefill_tps": None, "decode_tps": None}, 100, UNKNOWN_S),
        ({"phase": "prefill", "prefill_done_tokens": 50}, 100, 11.0),
    ],
)
def test_a_stream_ends_after_what_is_left_at_its_rates(changes: dict[str, Any], left: int, seconds: float) -> None:
    assert estimate_stream_s(stream(**changes), left) == pytest.approx(seconds)


def likely_ends_s(streams: list[StreamView], lengths: Lengths, rates: Rates | None = None) -> Mapping[str, float]:
    return estimate_ends(streams, lengths, rates or Rates(), courses=1).courses[0]


def test_ends_are_known_of_what_runs_and_nothing_else() -> None:
    streams = [stream(id="a"), stream(id="b", phase="finished"), stream(id="c", phase="waiting", queue_position=1)]
    assert likely_ends_s(streams, Lengths()) == {"a": pytest.approx(10.0)}


def test_who_does_not_decode_yet_is_taken_to_do_so_as_fast_as_the_others() -> None:
    reading = stream(id="b", phase="prefill", prefill_done_tokens=0, decode_tps=None)
    assert likely_ends_s([stream(id="a"), reading], Lengths())["b"] == pytest.approx(2.0 + 10.0)


BEGUN: dict[str, Any] = {"phase": "waiting", "prefill_done_tokens": 0, "prefill_tps": None, "decode_tps": None}


def test_before_anything_has_a_rate_the_last_streams_rates_stand_for_it() -> None:
    lengths = Lengths()
    lengths.note(stream(phase="finished", outcome="stop", prefill_tps=50.0, decode_tps=20.0))
    begun = stream(id="a", **BEGUN, max_tokens=60)
    assert likely_ends_s([begun], lengths, Rates(1.0, 1.0)) == {"a": pytest.approx(100 / 50 + 60 / 20)}
    assert estimate_ends([begun], lengths, Rates(), courses=1).usual_s == (pytest.approx(UNKNOWN_TOKENS / 20),)
    assert estimate_ends([], Lengths(), Rates(), courses=1).usual_s == (UNKNOWN_S,)


def test_before_anything_was_measured_the_forecast_rates_stand_for_it() -> None:
    begun = stream(id="a", **BEGUN, max_tokens=60)
    assert likely_ends_s([begun], Lengths(), Rates(200.0, 30.0)) == {"a": pytest.approx(100 / 200 + 60 / 30)}
    assert likely_ends_s([begun], Lengths()) == {"a": UNKNOWN_S}


def test_a_prompt_that_waits_for_its_first_chunk_is_read_after_the_others() -> None:
    reading = stream(id="r", phase="prefill", prompt_tokens=3000, prefill_done_tokens=1000, decode_tps=None)
    waiting = stream(id="w", prompt_tokens=500, **BEGUN)
    assert likely_ends_s([reading, waiting], Lengths()) == {"r": 2000 / 50, "w": 2500 / 50}


def test_in_all_courses_each_stream_ends_once_at_each_of_its_times() -> None:
    streams = [stream(id=str(number), max_tokens=32_000) for number in range(30)]
    ends = estimate_ends(streams, Lengths(), Rates())
    times = {tuple(sorted(course[str(number)] for course in ends.courses)) for number in range(30)}
    assert len(ends.courses) == len(ends.usual_s) == COURSES
    assert len(times) == 1
    assert len(set(times.pop())) == COURSES


def test_one_stream_is_waited_for_to_its_median_and_the_first_of_several_ends_sooner() -> None:
    lengths = Lengths()
    for tokens in range(100, 1200, 100):
        lengths.note(stream(client="c", completion_tokens=tokens, outcome="stop"))

    def wait_for(count: int) -> float | None:
        streams = [stream(id=str(number), max_tokens=32_000) for number in range(count)]
        ends = estimate_ends(streams, lengths, Rates())
        policy, load = AdmissionPolicy(max_in_flight=count), Load(hold(*(each.id for each in streams)))
        return estimate_waits_s(policy, load, [Asked(place(), 10, None)], ends)[0]

    assert wait_for(1) == pytest.approx(60.0)
    # Eleven courses of ends at 10, 20 .. 110 s: (10, 10), (20, 30), (30, 50), (40, 70), (50, 90), (60, 110), (70, 20),
    # (80, 40), (90, 60), (100, 80), (110, 100); of the earlier ones the sixth is 40.
    assert wait_for(2) == pytest.approx(40.0)
    assert wait_for(8) == pytest.approx(20.0, abs=10.0)


def test_who_has_a_slot_and_is_no_stream_yet_takes_what_an_answer_does() -> None:
    ends = Ends(({},), (4.0,))
    line = [Asked(place(), 10, None)]
    assert estimate_waits_s(AdmissionPolicy(max_in_flight=1), Load(hold("a")), line, ends) == [4.0]


def test_the_forecast_is_asked_once_however_many_courses_are_weighed() -> None:
    asks = list[int]()

    def forecast(asked: Asked, output_tokens: int) -> None:
        asks.append(asked.prompt_tokens + output_tokens)

    ends = estimate_ends([stream(id="a")], Lengths(), Rates())
    policy, load = AdmissionPolicy(max_in_flight=2, min_decode_tps=5), Load(hold("a"), forecast=forecast)
    assert estimate_waits_s(policy, load, [Asked(place(), 10, None, 20)], ends) == [0.0]
    assert asks == [30]


def test_what_holds_for_good_holds_in_every_course() -> None:
    ends = estimate_ends([stream(id="a")], Lengths(), Rates())
    policy = AdmissionPolicy(subagents=SubagentPolicy(max_depth=0))
    assert estimate_waits_s(policy, Load(hold("a")), [Asked(place("new", "p"), 10, None)], ends) == [None]
    assert estimate_waits_s(AdmissionPolicy(max_in_flight=1), Load(), [Asked(place(), 10, None)], Ends()) == [0.0]


ENDS = {"a": 5.0, "b": 9.0, "c": 30.0}


@pytest.mark.parametrize(
    ("policy", "load", "asked", "wait_s"),
    [
        (AdmissionPolicy(max_in_flight=2), Load(hold("a", "b")), place(), 5.0),
        (AdmissionPolicy(max_in_flight=2), Load(hold("c", "b", "a")), place(), 9.0),
        (AdmissionPolicy(max_in_flight=2), Load(hold("a", "unheard of")), place(), 5.0),
        (AdmissionPolicy(max_in_flight=1), Load(hold("unheard of")), place(), UNKNOWN_S),
        (AdmissionPolicy(max_in_flight=2), Load(hold("a")), place(), 0.0),
        (AdmissionPolicy(max_in_flight=9), Load((*hold("a"), *hold("c", parent="p"))), place("new", "p"), 30.0),
        (AdmissionPolicy(max_in_flight=2), Load(hold("a", "c")), place("new", "p"), 30.0),
        (AdmissionPolicy(max_in_flight=9), Load(hold("a", "c"), draining=True), place(), 30.0),
        (AdmissionPolicy(subagents=SubagentPolicy(max_depth=0)), Load(hold("a")), place("new", "p"), None),
        (AdmissionPolicy(subagents=SubagentPolicy(max_concurrent=0)), Load(), place("new", "p"), None),
        (AdmissionPolicy(max_in_flight=9, context_budget_tokens=4), Load(hold("a", "b")), place(), None),
    ],
)
def test_a_wait_lasts_until_those_that_hold_the_limit_have_ended(
    policy: AdmissionPolicy, load: Load, asked: Place, wait_s: float | None
) -> None:
    assert estimate_wait_s(policy, load, Asked(asked, 10, None), ENDS) == wait_s


def test_who_stands_in_line_waits_for_those_before_it() -> None:
    line = [Asked(place(name), 10, None) for name in ("first", "second", "third")]
    waits = estimate_line_s(AdmissionPolicy(max_in_flight=2), Load(hold("a", "b")), line, ENDS, [2.5])
    assert waits == [5.0, 7.5, 9.0]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1000), max_size=12), st.integers(1, 8), st.integers(0, 4), st.floats(0, 100))
def test_a_line_is_served_as_streams_end(ends: list[float], places: int, before: int, usual_s: float) -> None:
    ends_s = {str(number): end_s for number, end_s in enumerate(ends)}
    line = [Asked(place(), 10, None)] * (before + 1)
    waits = estimate_line_s(AdmissionPolicy(max_in_flight=places), Load(hold(*ends_s)), line, ends_s, [usual_s])
    running = sorted(ends)
    for wait_s in waits:
        now_s = 0.0
        while len(running) >= places:
            now_s = running.pop(0)
        assert wait_s == now_s
        running = sorted([*running, now_s + usual_s])


@pytest.mark.parametrize(
    ("seconds", "earliest", "latest"),
    [(0.0, 1, 2), (1.4, 2, 3), (4.2, 5, 6), (9.0, 9, 11), (40.0, 40, 50), (60.0, 45, 60), (1e9, 45, 60)],
)
def test_a_wait_is_whole_seconds_and_spread(seconds: float, earliest: int, latest: int) -> None:
    waits = {clamp_wait_s(seconds, ratio / 100) for ratio in range(101)}
    assert waits == set(range(earliest, latest + 1))


@settings(deadline=None)
@given(st.floats(0, 1e12), st.floats(0, 1))
def test_a_wait_is_always_from_1_to_60(seconds: float, ratio: float) -> None:
    wait = clamp_wait_s(seconds, ratio)
    assert isinstance(wait, int)
    assert 1 <= wait <= 60


@pytest.mark.parametrize("seed", range(20))
def test_eight_clients_that_sleep_exactly_as_long_as_they_are_told_all_get_the_one_slot(seed: int) -> None:
    policy, job_s, now = AdmissionPolicy(max_in_flight=1), 4.0, 0.0
    began, permit, served = 0.0, None, list[float]()
    admission = Admission(
        lambda: (stream(id="", completion_tokens=int((now - began) * 25), decode_tps=25.0),), random.Random(seed).random
    )
    wakes = [(0.0, client) for client in range(8)]
    while wakes:
        now, client = heapq.heappop(wakes)
        if permit is not None and now >= began + job_s:
            permit.release()
        try:
            permit = admission.admit(Asked(place(), 10, None), policy)
        except Refusal as refusal:
            heapq.heappush(wakes, (now + cast("int", refusal.retry_after_s), client))
        else:
            began = now
            served.append(now)
    assert len(served) == 8, "one place, held 4 s by each"
    assert max(later - earlier for earlier, later in itertools.pairwise(served)) <= job_s + 4, "it is never idle long"
