from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import Asked
from server.admission.place import Place
from server.admission.slots import Admission, Permit
from server.errors import Refusal
from server.memory_plan import MemoryPlan, StreamCost
from server.policy import AdmissionPolicy

ANYBODY = Place("s", None, 0, "unknown", "c", "")
ASKED = Asked(ANYBODY, 10, None)
TWO = AdmissionPolicy(max_in_flight=2)


def test_slots_are_taken_up_to_the_limit_and_given_back() -> None:
    admission = Admission()
    first, _ = admission.admit(ASKED, TWO), admission.admit(ASKED, TWO)
    with pytest.raises(Refusal) as caught:
        admission.admit(ASKED, TWO)
    assert (caught.value.code, caught.value.limit, caught.value.used) == ("in_flight_full", 2, 2)
    first.release()
    admission.admit(ASKED, TWO)
    assert (admission.in_flight, admission.peak_in_flight, admission.admitted_total) == (2, 2, 3)


def test_giving_back_twice_frees_one_slot() -> None:
    admission = Admission()
    first, _ = admission.admit(ASKED, TWO), admission.admit(ASKED, TWO)
    first.release()
    first.release()
    assert admission.in_flight == 1
    assert not first.is_held


def test_the_peak_stays_when_slots_are_given_back() -> None:
    admission = Admission()
    first, second = admission.admit(ASKED, TWO), admission.admit(ASKED, TWO)
    first.release()
    second.release()
    admission.admit(ASKED, TWO)
    assert (admission.in_flight, admission.peak_in_flight) == (1, 2)


def test_asking_takes_nothing() -> None:
    admission = Admission()
    assert admission.find_refusal(ASKED, TWO) is None
    assert (admission.in_flight, admission.admitted_total) == (0, 0)


def test_a_draining_server_admits_nothing_until_it_resumes() -> None:
    admission = Admission()
    running = admission.admit(ASKED, TWO)
    admission.drain()
    with pytest.raises(Refusal) as caught:
        admission.admit(ASKED, TWO)
    assert caught.value.code == "draining"
    assert running.is_held
    admission.resume()
    assert admission.admit(ASKED, TWO).is_held


def test_refusals_at_the_same_moment_say_different_times() -> None:
    admission = Admission()
    admission.admit(ASKED, AdmissionPolicy(max_in_flight=1))
    refusals = [admission.find_refusal(ASKED, AdmissionPolicy(max_in_flight=1)) for _ in range(200)]
    waits = {refusal.retry_after_s or 0 for refusal in refusals if refusal is not None}
    assert len(waits) > 1
    assert all(1 <= wait <= 60 for wait in waits)


class Expected(msgspec.Struct, frozen=True):
    lowest_tps: float = 64.0
    basis: Literal["estimate", "measured"] = "estimate"
    ttft_s: float | None = 0.5


def test_the_first_refusal_of_a_server_tells_what_the_forecast_says_of_an_answer() -> None:
    policy = AdmissionPolicy(max_in_flight=1)
    admission = Admission(draw=lambda: 0.0, read_policy=lambda: policy, forecast=lambda *_: Expected())
    admission.admit(ASKED, policy)
    refusal = admission.find_refusal(ASKED, policy)
    assert refusal is not None
    assert refusal.retry_after_s == 256 / 64


def test_an_output_is_expected_to_be_what_is_usual_and_not_what_is_granted() -> None:
    admission = Admission()
    assert admission.expect_output(ASKED, 32_000) == 256
    assert admission.expect_output(ASKED, 20) == 20


actions = st.lists(
    st.one_of(
        st.just("admit"),
        st.tuples(st.just("release"), st.integers(0, 200)),
        st.tuples(st.just("limit"), st.integers(1, 8)),
    ),
    max_size=120,
)


@settings(deadline=None)
@given(actions)
def test_under_any_sequence_no_slot_leaks_and_none_is_given_above_the_limit(sequence: list[object]) -> None:
    admission, policy, held = Admission(), TWO, list[Permit]()
    for action in sequence:
        before = admission.in_flight
        match action:
            case "admit":
                if before < policy.max_in_flight:
                    held.append(admission.admit(ASKED, policy))
                    assert admission.in_flight == before + 1 <= policy.max_in_flight
                else:
                    with pytest.raises(Refusal, match=f"{before} of {policy.max_in_flight} in flight"):
                        admission.admit(ASKED, policy)
            case ("release", int(place)) if held:
                held.pop(place % len(held)).release()
                assert admission.in_flight == before - 1
            case ("limit", int(limit)):
                policy = AdmissionPolicy(max_in_flight=limit)
                assert admission.in_flight == before, "a lower limit cuts nothing that runs"
            case _:
                pass
        assert admission.in_flight == len(held)
    for permit in held:
        permit.release()
    assert admission.in_flight == 0


def test_memory_is_promised_with_a_slot_and_free_again_with_it() -> None:
    plan = MemoryPlan(budget_bytes=10**9, model_bytes=0, stream=StreamCost(0, 10**5))
    admission = Admission(read_memory=lambda: plan)
    permit = admission.admit(Asked(ANYBODY, 100, 4000, 4000), TWO)
    assert permit.max_tokens == 4000
    assert admission.promised_bytes == plan.stream.at(4100)
    with pytest.raises(Refusal) as caught:
        admission.admit(Asked(ANYBODY, 100, 4000, 4000), TWO)
    assert caught.value.code == "memory_budget_full"
    assert (caught.value.limit, caught.value.used) == (10**9, plan.work_bytes + plan.stream.at(4100))
    assert (admission.in_flight, admission.promised_bytes) == (1, plan.stream.at(4100))
    permit.release()
    permit.release()
    assert (admission.in_flight, admission.promised_bytes) == (0, 0)
    assert admission.admit(Asked(ANYBODY, 100, 4000, 4000), TWO).is_held


def test_where_no_stream_fits_nobody_is_told_to_come_back() -> None:
    plan = MemoryPlan(budget_bytes=2**25, model_bytes=2**25, stream=StreamCost(0, 10**5))
    admission = Admission(read_memory=lambda: plan)
    with pytest.raises(Refusal) as caught:
        admission.admit(ASKED, TWO)
    assert (caught.value.code, caught.value.retry_after_s) == ("memory_too_small", None)


def test_memory_is_lacking_only_where_a_place_is_free_and_a_request_would_be_refused_for_it() -> None:
    plan = MemoryPlan(budget_bytes=10**9, model_bytes=0, stream=StreamCost(0, 10**5))
    admission = Admission(read_memory=lambda: plan)
    assert not admission.lacks_memory(TWO, 4096)
    first = admission.admit(Asked(ANYBODY, 3000, 1000, 1000), TWO)
    assert admission.lacks_memory(TWO, 10_000)
    assert not admission.lacks_memory(TWO, 1000), "no request has room for more output in such a context"
    admission.admit(Asked(ANYBODY, 100, 1000, 1000), TWO)
    assert not admission.lacks_memory(TWO, 10_000), "every request is refused for want of a place"
    first.release()
    assert not Admission().lacks_memory(TWO, 10_000), "nothing is known of memory"
