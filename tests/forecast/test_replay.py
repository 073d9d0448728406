from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from server.forecast.arrivals import UNKNOWN_S, Arrival, read_arrivals
from server.forecast.replay import replay
from server.history.records import ADMITTED, RequestRecord
from server.memory_plan import MemoryPlan, StreamCost
from server.policy import AdmissionPolicy, SubagentPolicy


def arrive(time_s: float, duration_s: float = 10.0, session: str = "s", **fields: Any) -> Arrival:
    return Arrival(time_s, session, "unknown", 100, 50, duration_s, **fields)


def test_who_comes_while_all_places_are_taken_is_refused() -> None:
    found = replay(
        AdmissionPolicy(max_in_flight=2),
        MemoryPlan(),
        [arrive(0), arrive(1), arrive(2, session="late"), arrive(10.5), arrive(30)],
    )
    assert (found.arrivals, found.admitted, found.peak_in_flight) == (5, 4, 2)
    assert found.refused_by_code == {"in_flight_full": 1}
    assert (found.first_s, found.last_s) == (0, 30)
    assert [(each.session, each.code) for each in found.refusals] == [("late", "in_flight_full")]


def test_one_place_more_takes_the_same_requests_in() -> None:
    arrivals = [arrive(0), arrive(1), arrive(2)]
    assert replay(AdmissionPolicy(max_in_flight=3), MemoryPlan(), arrivals).refused_by_code == {}
    assert replay(AdmissionPolicy(max_in_flight=1), MemoryPlan(), arrivals).refused_by_code == {"in_flight_full": 2}


def test_memory_is_promised_and_given_back_as_time_goes() -> None:
    plan = MemoryPlan(budget_bytes=100 * 2**20, model_bytes=0, stream=StreamCost(20 * 2**20, 1))
    found = replay(AdmissionPolicy(max_in_flight=8), plan, [arrive(0), arrive(1), arrive(20)])
    assert found.refused_by_code == {"memory_budget_full": 1}
    assert found.admitted == 2


def test_nobody_came_and_nothing_is_told() -> None:
    found = replay(AdmissionPolicy(), MemoryPlan(), [])
    assert (found.arrivals, found.first_s, found.last_s, found.refusals) == (0, None, None, ())


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), max_size=30), st.integers(1, 6))
def test_never_more_at_once_than_the_limit_and_everyone_is_told_of(
    drawn: list[tuple[float, float]], limit: int
) -> None:
    found = replay(AdmissionPolicy(max_in_flight=limit), MemoryPlan(), [arrive(*each) for each in drawn])
    assert found.peak_in_flight <= limit
    assert found.admitted + sum(found.refused_by_code.values()) == found.arrivals == len(drawn)


def end(arrived_s: float, duration_s: float, **fields: Any) -> RequestRecord:
    return build(arrived_s, duration_s=duration_s, prompt_tokens=1000, completion_tokens=200, outcome="stop", **fields)


def refuse(arrived_s: float, prompt_tokens: int | None, max_tokens: int | None) -> RequestRecord:
    return build(arrived_s, prompt_tokens=prompt_tokens, max_tokens=max_tokens, decision="in_flight_full")


def build(arrived_s: float, **fields: Any) -> RequestRecord:
    known: dict[str, Any] = {
        "request_id": "r",
        "session": "s",
        "parent_session": None,
        "lane": "unknown",
        "depth": 0,
        "client": "c",
        "key": "",
        "model": "nano",
        "decision": ADMITTED,
        "prompt_tokens": None,
        "max_tokens": None,
    }
    return RequestRecord(arrived_s=arrived_s, **(known | fields))


def test_arrivals_are_read_of_what_ran_and_of_what_was_refused() -> None:
    child = end(30, 20, lane="child", depth=1, parent_session="p")
    elsewhere = end(10, 5, upstream="brain")
    arrivals = read_arrivals([end(60, 40), child, refuse(70, None, None), refuse(71, 7, 9), elsewhere])
    assert [arrival.time_s for arrival in arrivals] == [30, 60, 70, 71]
    assert [(arrival.depth, arrival.parent_session) for arrival in arrivals[:2]] == [(1, "p"), (0, None)]
    uncounted, counted = arrivals[2:]
    assert (uncounted.prompt_tokens, uncounted.completion_tokens, uncounted.duration_s) == (1000, 200, 30)
    assert (counted.prompt_tokens, counted.completion_tokens, counted.max_tokens) == (7, 9, 9)


def test_refusals_alone_are_taken_to_run_for_a_while() -> None:
    (arrival,) = read_arrivals([refuse(1, 10, 20)])
    assert arrival.duration_s == UNKNOWN_S


def test_children_are_held_to_the_limits_of_children() -> None:
    children = [arrive(number, parent_session="s", depth=1) for number in (1, 2)]
    arrivals = [arrive(0), *(msgspec.structs.replace(each, lane="child") for each in children)]
    wide = AdmissionPolicy(max_in_flight=4)
    assert replay(wide, MemoryPlan(), arrivals).refused_by_code == {"child_lane_full": 1}
    two = msgspec.structs.replace(wide, subagents=SubagentPolicy(max_concurrent=2, sampling_limit=2))
    assert replay(two, MemoryPlan(), arrivals).refused_by_code == {}
