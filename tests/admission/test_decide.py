from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import LEAST_OUTPUT_TOKENS, Admit, Asked, Held, Load, Refuse, decide, find_shortage
from server.admission.place import Place
from server.events import Lane
from server.memory_plan import MemoryPlan, StreamCost
from server.policy import AdmissionPolicy, ClientPolicy, SubagentPolicy

PLAN = MemoryPlan(budget_bytes=1000 * 2**20, model_bytes=150 * 2**20, stream=StreamCost(2**20, 2**10))
"""800 MiB for streams, of which each takes 2 MiB and about a KiB for each token."""


def place(session: str = "s", parent: str | None = None, lane: Lane | None = None, **changes: Any) -> Place:
    lane = lane or ("child" if parent else "parent")
    return msgspec.structs.replace(Place(session, parent, int(lane == "child"), lane, "c/1", ""), **changes)


def held(*places: Place, tokens: int = 0, promised_bytes: int = 0) -> tuple[Held, ...]:
    return tuple(Held(str(number), each, tokens, promised_bytes) for number, each in enumerate(places))


def some(count: int, promised_bytes: int = 0) -> tuple[Held, ...]:
    return held(*(place(f"s{number}") for number in range(count)), promised_bytes=promised_bytes)


def ask(
    prompt_tokens: int = 10, output_tokens: int = 0, max_tokens: int | None = None, who: Place | None = None
) -> Asked:
    return Asked(who or place("new", lane="unknown"), prompt_tokens, max_tokens, output_tokens)


@pytest.mark.parametrize(
    ("max_in_flight", "load", "decision"),
    [
        (2, Load(), Admit()),
        (2, Load(some(1)), Admit()),
        (2, Load(some(2)), Refuse("in_flight_full", 2, 2, key="policy.max_in_flight")),
        (1, Load(some(2)), Refuse("in_flight_full", 1, 2, key="policy.max_in_flight")),
        (2, Load(draining=True), Refuse("draining")),
        (2, Load(some(5), draining=True), Refuse("draining", in_flight=5)),
    ],
)
def test_the_limit_and_draining_decide(max_in_flight: int, load: Load, decision: Admit | Refuse) -> None:
    assert decide(AdmissionPolicy(max_in_flight=max_in_flight), load, ask()) == decision


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(0, 70), st.sampled_from(["parent", "auxiliary", "unknown"]))
def test_never_refused_while_the_limit_is_free_and_never_admitted_above_it(limit: int, used: int, lane: Lane) -> None:
    decision = decide(AdmissionPolicy(max_in_flight=limit), Load(some(used)), ask(who=place(lane=lane)))
    assert isinstance(decision, Admit) == (used < limit)


def children(*, limit: int = 64, in_all: int = 64, depth: int = 1, places: int = 64) -> AdmissionPolicy:
    return AdmissionPolicy(max_in_flight=places, subagents=SubagentPolicy(limit, in_all, depth))


@pytest.mark.parametrize(
    ("policy", "running", "key", "limit", "used"),
    [
        (children(limit=1), [place("p"), place("a", "p")], "policy.subagents.max_concurrent", 1, 1),
        (children(limit=0), [], "policy.subagents.max_concurrent", 0, 0),
        (children(limit=1), [place("q"), place("a", "q")], None, 0, 0),
        (children(in_all=1), [place("q"), place("a", "q")], "policy.subagents.sampling_limit", 1, 1),
        (children(in_all=1), [place("q"), place("q", lane="auxiliary"), place("u", lane="unknown")], None, 0, 0),
        (children(places=2), [place("q")], "policy.max_in_flight", 2, 1),
        (children(places=2), [place("p")], None, 0, 0),
        (children(places=3), [place("q")], None, 0, 0),
        (children(places=1), [], None, 0, 0),
    ],
)
def test_children_have_limits_of_their_own_and_leave_their_parent_a_place(
    policy: AdmissionPolicy, running: list[Place], key: str | None, limit: int, used: int
) -> None:
    decision = decide(policy, Load(held(*running)), ask(who=place("new", "p")))
    refused = Refuse("child_lane_full", limit, used, key=key or "", is_for_all=False)
    assert decision == (refused if key else Admit())


@pytest.mark.parametrize(("depth", "most", "is_in"), [(1, 1, True), (2, 1, False), (2, 2, True), (1, 0, False)])
def test_a_child_that_is_too_deep_is_refused(depth: int, most: int, is_in: bool) -> None:
    decision = decide(children(depth=most), Load(), ask(who=place("new", "p", depth=depth)))
    refused = Refuse("depth_exceeded", most, depth, key="policy.subagents.max_depth", is_for_all=False)
    assert decision == (Admit() if is_in else refused)


@pytest.mark.parametrize(
    ("own", "code", "limit"),
    [
        (ClientPolicy(max_in_flight=1), "in_flight_full", 1),
        (ClientPolicy(max_concurrent=1), "child_lane_full", 1),
        (ClientPolicy(max_depth=0), "depth_exceeded", 0),
        (ClientPolicy(), None, 0),
    ],
)
def test_a_clients_own_table_counts_for_its_own_streams_only(own: ClientPolicy, code: str | None, limit: int) -> None:
    policy = msgspec.structs.replace(children(limit=3), clients={"codex": own})
    load = Load(held(place("p", client="Codex/1"), place("a", "p")))
    decision = decide(policy, load, ask(who=place("new", "p", client="Codex/1")))
    if code is None:
        assert decision == Admit()
    else:
        assert isinstance(decision, Refuse)
        assert (decision.code, decision.limit, decision.is_for_all) == (code, limit, False)
        assert decision.key.startswith("policy.clients.codex.max_")
    assert decide(policy, load, ask(who=place("new", "p", client="goose/1"))) == Admit()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=20),
    st.integers(2, 6),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_no_arrivals_get_above_any_lanes_limit(
    arrivals: list[tuple[int, int, bool]], places: int, limit: int, in_all: int
) -> None:
    policy, running = children(limit=limit, in_all=in_all, places=places), list[Place]()
    for number, (own, other, is_child) in enumerate(arrivals):
        who = place(f"c{number}", f"p{other}") if is_child else place(f"p{own}")
        decision = decide(policy, Load(held(*running)), ask(who=who))
        if isinstance(decision, Refuse):
            assert decision.used is not None
            assert decision.limit is not None
            assert decision.used >= decision.limit or decision.used == places - 1
            continue
        running.append(who)
        below = [each for each in running if each.lane == "child"]
        assert len(running) <= places
        assert len(below) <= in_all
        assert all(sum(each.parent_session == name for each in below) <= limit for name in ("p0", "p1", "p2", "p3"))
        if is_child and not any(each.session == who.parent_session for each in running):
            assert len(running) < places, "its parent would be kept out"


@pytest.mark.parametrize(
    ("used", "asked", "granted"),
    [
        (0, ask(1000, 5000, 5000), 5000),
        (94_000, ask(1000, 5000, 5000), 5000),
        (94_001, ask(1000, 5000, 5000), None),
        (90_000, ask(1000, 50_000), LEAST_OUTPUT_TOKENS),
        (100_000 - 1000 - LEAST_OUTPUT_TOKENS + 1, ask(1000, 50_000), None),
        (0, ask(1000, 80_000), 49_000),
        (100_001, ask(0), None),
    ],
)
def test_contexts_together_stay_within_their_budget(used: int, asked: Asked, granted: int | None) -> None:
    policy = AdmissionPolicy(max_in_flight=2 if not used else 3, context_budget_tokens=100_000)
    load = Load(held(place("p"), tokens=used) if used else ())
    decision = decide(policy, load, asked)
    if granted is not None:
        assert decision == Admit(granted)
    else:
        needed = asked.prompt_tokens + (asked.max_tokens or min(asked.output_tokens, LEAST_OUTPUT_TOKENS))
        key = "policy.context_budget_tokens"
        assert decision == Refuse("context_budget_full", 100_000, used, needed, key=key)


class Expected(msgspec.Struct, frozen=True):
    lowest_tps: float
    basis: Literal["estimate", "measured"] = "estimate"
    ttft_s: float | None = None


def test_who_would_slow_a_stream_below_the_floor_is_refused_unless_it_is_alone() -> None:
    policy, asks = AdmissionPolicy(min_decode_tps=30), list[tuple[int, int]]()

    def forecast(asked: Asked, output_tokens: int) -> Expected | None:
        asks.append((asked.prompt_tokens, output_tokens))
        return Expected(30.0 if asked.prompt_tokens < 1000 else 29.9)

    load = Load(some(1), forecast=forecast)
    assert decide(policy, load, ask(999, 50, 50)) == Admit(50)
    refused = Refuse("decode_floor", 30, 29.9, key="policy.min_decode_tps", basis="estimate")
    assert decide(policy, load, ask(1000, 60, 60)) == refused
    assert asks == [(999, 50), (1000, 60)]
    assert decide(policy, msgspec.structs.replace(load, held=()), ask(1000, 60, 60)) == Admit(60)
    assert decide(AdmissionPolicy(), load, ask(1000, 60, 60)) == Admit(60), "no floor is asked for"
    assert decide(policy, msgspec.structs.replace(load, forecast=lambda *_: None), ask(1000, 1, 1)) == Admit(1)


def test_a_request_that_fits_gets_all_it_asked_for_and_is_promised_its_memory() -> None:
    decision = decide(AdmissionPolicy(), Load(memory=PLAN), ask(1000, 5000, 5000))
    assert decision == Admit(5000, PLAN.stream.at(6000))


def test_one_that_does_not_fit_is_refused_with_the_numbers() -> None:
    promised = PLAN.room_bytes - PLAN.stream.at(1000 + LEAST_OUTPUT_TOKENS) + 1
    decision = decide(AdmissionPolicy(), Load(some(1, promised), memory=PLAN), ask(1000, 5000, 5000))
    assert isinstance(decision, Refuse)
    assert decision.code == "memory_budget_full"
    assert decision.left == PLAN.room_bytes - promised < decision.needed
    assert (decision.limit, decision.work) == (PLAN.budget_bytes, PLAN.work_bytes)
    assert decision.needed == PLAN.stream.at(1000 + LEAST_OUTPUT_TOKENS)
    admitted = decide(AdmissionPolicy(), Load(some(1, promised - 1), memory=PLAN), ask(1000, 5000, 5000))
    assert isinstance(admitted, Admit)
    assert admitted.max_tokens == LEAST_OUTPUT_TOKENS


def test_a_client_that_leaves_its_output_open_leaves_room_for_another() -> None:
    first = decide(AdmissionPolicy(max_in_flight=2), Load(memory=PLAN), ask(1000, 10**6))
    assert isinstance(first, Admit)
    assert first.max_tokens < 10**6
    second = decide(AdmissionPolicy(max_in_flight=2), Load(some(1, first.memory_bytes), memory=PLAN), ask(1000, 10**6))
    assert isinstance(second, Admit)
    assert abs(second.max_tokens - first.max_tokens) < 10


@pytest.mark.parametrize("running", [0, 1, 2])
def test_where_no_stream_fits_waiting_is_no_way_out_whatever_runs(running: int) -> None:
    plan = MemoryPlan(budget_bytes=100 * 2**20, model_bytes=67 * 2**20, stream=StreamCost(2**20, 2**10))
    decision = decide(AdmissionPolicy(max_in_flight=2), Load(some(running, 2**20), memory=plan), ask(0))
    assert isinstance(decision, Refuse)
    assert (decision.code, decision.limit) == ("memory_too_small", plan.budget_bytes)
    assert decision.left == plan.room_bytes < decision.needed


@given(st.integers(1, 2**31), st.integers(0, 2**30), st.integers(0, 2**26), st.integers(0, 2**16))
def test_no_stream_fits_exactly_when_the_longest_has_no_token(budget: int, model: int, fixed: int, token: int) -> None:
    plan = MemoryPlan(budget, model, StreamCost(fixed, token))
    assert (find_shortage(plan) is None) == bool(plan.most_tokens)


def test_the_limit_of_streams_is_told_before_memory() -> None:
    decision = decide(AdmissionPolicy(max_in_flight=1), Load(some(1, 10**12), memory=PLAN), ask(10, 10))
    assert isinstance(decision, Refuse)
    assert decision.code == "in_flight_full"


def test_without_a_budget_nothing_is_refused_for_memory() -> None:
    assert decide(AdmissionPolicy(), Load(some(1, 10**15)), ask(10**6, 10**6)) == Admit(10**6)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400_000), st.integers(1, 400_000), st.booleans()), max_size=12),
    st.integers(1, 8),
    st.sampled_from([0, 20_000, 500_000]),
)
def test_what_is_promised_never_passes_the_room_nor_the_budget(
    requests: list[tuple[int, int, bool]], places: int, budget: int
) -> None:
    policy, running = AdmissionPolicy(max_in_flight=places, context_budget_tokens=budget), list[Held]()
    for prompt, output, is_open in requests:
        asked, load = ask(prompt, output, None if is_open else output), Load(tuple(running), memory=PLAN)
        decision = decide(policy, load, asked)
        if isinstance(decision, Admit):
            tokens = prompt + decision.max_tokens
            assert 1 <= decision.max_tokens <= output
            assert decision.memory_bytes == PLAN.stream.at(tokens)
            running.append(Held("r", asked.place, tokens, decision.memory_bytes))
        load = Load(tuple(running), memory=PLAN)
        assert load.promised_bytes <= PLAN.room_bytes
        assert not budget or load.context_tokens <= budget
