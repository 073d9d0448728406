from __future__ import annotations

import heapq
import itertools
import random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import Asked
from server.admission.estimate import UNKNOWN_S, clamp_wait_s, estimate_slot_s, estimate_stream_s
from server.admission.slots import Admission
from server.errors import Refusal
from server.policy import AdmissionPolicy
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


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 10.0),
        ({"completion_tokens": 60}, 4.0),
        ({"completion_tokens": 100}, 0.0),
        ({"decode_tps": None}, UNKNOWN_S),
        ({"phase": "prefill", "prefill_done_tokens": 0, "decode_tps": None}, 2.0),
        ({"phase": "prefill", "prefill_done_tokens": 0, "prefill_tps": None, "decode_tps": None}, UNKNOWN_S),
        ({"phase": "prefill", "prefill_done_tokens": 50}, 11.0),
    ],
)
def test_a_stream_ends_after_what_is_left_at_its_rates(changes: dict[str, Any], seconds: float) -> None:
    assert estimate_stream_s(stream(**changes)) == pytest.approx(seconds)


def test_a_slot_is_free_when_as_many_streams_have_ended_as_must() -> None:
    streams = [stream(max_tokens=300), stream(max_tokens=50), stream(max_tokens=10, phase="finished")]
    assert estimate_slot_s(streams, 1) == pytest.approx(5.0)
    assert estimate_slot_s(streams, 2) == pytest.approx(30.0)
    assert estimate_slot_s(streams, 3) == UNKNOWN_S
    assert estimate_slot_s(streams, 0) == 0.0


def test_a_prompt_that_waits_for_its_first_chunk_is_read_after_the_others() -> None:
    reading = stream(phase="prefill", prompt_tokens=3000, prefill_done_tokens=1000, decode_tps=None)
    waiting = stream(phase="waiting", prompt_tokens=500, prefill_done_tokens=0, prefill_tps=None, decode_tps=None)
    assert estimate_slot_s([reading, waiting], 1) == pytest.approx(2000 / 50)
    assert estimate_slot_s([reading, waiting], 2) == pytest.approx(2500 / 50)
    assert estimate_slot_s([waiting], 1) == UNKNOWN_S


@pytest.mark.parametrize(
    ("seconds", "earliest", "latest"), [(0.0, 1, 3), (4.2, 5, 7), (40.0, 40, 50), (60.0, 45, 60), (1e9, 45, 60)]
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
        lambda: (stream(completion_tokens=int((now - began) * 25), decode_tps=25.0),), random.Random(seed).random
    )
    wakes = [(0.0, client) for client in range(8)]
    while wakes:
        now, client = heapq.heappop(wakes)
        if permit is not None and now >= began + job_s:
            permit.release()
        try:
            permit = admission.admit(Asked("unknown", 10, None), policy)
        except Refusal as refusal:
            heapq.heappush(wakes, (now + cast("int", refusal.retry_after_s), client))
        else:
            began = now
            served.append(now)
    assert len(served) == 8, "one place, held 4 s by each"
    assert max(later - earlier for earlier, later in itertools.pairwise(served)) <= job_s + 4, "it is never idle long"
