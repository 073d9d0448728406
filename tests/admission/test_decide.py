from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import LEAST_OUTPUT_TOKENS, Admit, Asked, Load, Refuse, decide, find_shortage
from server.events import Lane
from server.memory_plan import MemoryPlan, StreamCost
from server.policy import AdmissionPolicy

ASKED = Asked("unknown", 10, None)
PLAN = MemoryPlan(budget_bytes=1000 * 2**20, model_bytes=150 * 2**20, stream=StreamCost(2**20, 2**10))
"""800 MiB for streams, of which each takes 2 MiB and about a KiB for each token."""


@pytest.mark.parametrize(
    ("max_in_flight", "load", "decision"),
    [
        (2, Load(0), Admit()),
        (2, Load(1), Admit()),
        (2, Load(2), Refuse("in_flight_full", 2, 2)),
        (1, Load(2), Refuse("in_flight_full", 1, 2)),
        (2, Load(0, draining=True), Refuse("draining")),
        (2, Load(5, draining=True), Refuse("draining", in_flight=5)),
    ],
)
def test_the_limit_and_draining_decide(max_in_flight: int, load: Load, decision: Admit | Refuse) -> None:
    assert decide(AdmissionPolicy(max_in_flight=max_in_flight), load, ASKED) == decision


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(0, 100), st.sampled_from(["parent", "child", "auxiliary", "unknown"]))
def test_never_refused_while_the_limit_is_free_and_never_admitted_above_it(limit: int, used: int, lane: Lane) -> None:
    decision = decide(AdmissionPolicy(max_in_flight=limit), Load(used), Asked(lane, 1, 1))
    assert isinstance(decision, Admit) == (used < limit)


def ask(prompt_tokens: int, output_tokens: int, max_tokens: int | None = None) -> Asked:
    return Asked("unknown", prompt_tokens, max_tokens, output_tokens)


def test_a_request_that_fits_gets_all_it_asked_for_and_is_promised_its_memory() -> None:
    decision = decide(AdmissionPolicy(), Load(0, memory=PLAN), ask(1000, 5000, 5000))
    assert decision == Admit(5000, PLAN.stream.at(6000))


def test_one_that_does_not_fit_is_refused_with_the_numbers() -> None:
    promised = PLAN.room_bytes - PLAN.stream.at(1000 + LEAST_OUTPUT_TOKENS) + 1
    decision = decide(AdmissionPolicy(), Load(1, memory=PLAN, promised_bytes=promised), ask(1000, 5000, 5000))
    assert isinstance(decision, Refuse)
    assert decision.code == "memory_budget_full"
    assert decision.left == PLAN.room_bytes - promised < decision.needed
    assert (decision.limit, decision.work) == (PLAN.budget_bytes, PLAN.work_bytes)
    assert decision.needed == PLAN.stream.at(1000 + LEAST_OUTPUT_TOKENS)
    admitted = decide(AdmissionPolicy(), Load(1, memory=PLAN, promised_bytes=promised - 1), ask(1000, 5000, 5000))
    assert isinstance(admitted, Admit)
    assert admitted.max_tokens == LEAST_OUTPUT_TOKENS


def test_a_client_that_leaves_its_output_open_leaves_room_for_another() -> None:
    first = decide(AdmissionPolicy(max_in_flight=2), Load(0, memory=PLAN), ask(1000, 10**6))
    assert isinstance(first, Admit)
    assert first.max_tokens < 10**6
    second = decide(
        AdmissionPolicy(max_in_flight=2), Load(1, memory=PLAN, promised_bytes=first.memory_bytes), ask(1000, 10**6)
    )
    assert isinstance(second, Admit)
    assert abs(second.max_tokens - first.max_tokens) < 10


@pytest.mark.parametrize("load", [(0, 0), (1, 2**20), (2, 2**20)])
def test_where_no_stream_fits_waiting_is_no_way_out_whatever_runs(load: tuple[int, int]) -> None:
    plan = MemoryPlan(budget_bytes=100 * 2**20, model_bytes=67 * 2**20, stream=StreamCost(2**20, 2**10))
    decision = decide(AdmissionPolicy(max_in_flight=2), Load(load[0], False, plan, load[1]), ask(0, 0))
    assert isinstance(decision, Refuse)
    assert (decision.code, decision.limit) == ("memory_too_small", plan.budget_bytes)
    assert decision.left == plan.room_bytes < decision.needed


@given(st.integers(1, 2**31), st.integers(0, 2**30), st.integers(0, 2**26), st.integers(0, 2**16))
def test_no_stream_fits_exactly_when_the_longest_has_no_token(budget: int, model: int, fixed: int, token: int) -> None:
    plan = MemoryPlan(budget, model, StreamCost(fixed, token))
    assert (find_shortage(plan) is None) == bool(plan.most_tokens)


def test_the_limit_of_streams_is_told_before_memory() -> None:
    decision = decide(AdmissionPolicy(max_in_flight=1), Load(1, memory=PLAN, promised_bytes=10**12), ask(10, 10))
    assert isinstance(decision, Refuse)
    assert decision.code == "in_flight_full"


def test_without_a_budget_nothing_is_refused_for_memory() -> None:
    assert decide(AdmissionPolicy(), Load(0, promised_bytes=10**15), ask(10**6, 10**6)) == Admit(10**6)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400_000), st.integers(1, 400_000), st.booleans()), max_size=12),
    st.integers(1, 8),
)
def test_what_is_promised_never_passes_the_room(requests: list[tuple[int, int, bool]], places: int) -> None:
    promised, in_flight = 0, 0
    for prompt, output, is_open in requests:
        asked = ask(prompt, output, None if is_open else output)
        decision = decide(AdmissionPolicy(max_in_flight=places), Load(in_flight, False, PLAN, promised), asked)
        if isinstance(decision, Admit):
            promised, in_flight = promised + decision.memory_bytes, in_flight + 1
            assert 1 <= decision.max_tokens <= output
            assert decision.memory_bytes == PLAN.stream.at(prompt + decision.max_tokens)
        assert promised <= PLAN.room_bytes
