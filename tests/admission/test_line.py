from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import Admit, Asked, Held, Load, RefusalCode, Refuse, decide
from server.admission.line import (
    AUXILIARY_LIMIT,
    InLine,
    find_hopeless,
    find_patience_s,
    has_room,
    order_line,
    pick_next,
    wants_overflow,
)
from server.admission.place import Place
from server.events import Lane
from server.memory_plan import MemoryPlan, StreamCost
from server.policy import AdmissionPolicy, ClientPolicy, SubagentPolicy

QUEUE = AdmissionPolicy(max_in_flight=2, limit_behavior="queue", queue_wait_s=30, queue_limit=2, auxiliary_wait_s=7)
CODEX = {"codex": ClientPolicy(limit_behavior="queue")}


def ask(lane: Lane = "parent", session: str = "s", parent: str | None = None, prompt: int = 10, **rest: Any) -> Asked:
    depth = int(lane == "child")
    return Asked(msgspec.structs.replace(Place(session, parent, depth, lane, "codex/1", ""), **rest), prompt, 10, 10)


def stand(*asked: Asked) -> tuple[InLine, ...]:
    return tuple(InLine(number, each) for number, each in enumerate(asked))


@pytest.mark.parametrize(
    ("changes", "lane", "patience_s"),
    [
        ({}, "parent", 30),
        ({}, "auxiliary", 7),
        ({"auxiliary_wait_s": 0}, "auxiliary", 30),
        ({"limit_behavior": "fail"}, "parent", 0),
        ({"limit_behavior": "fail"}, "auxiliary", 7),
        ({"limit_behavior": "overflow"}, "child", 0),
        ({"limit_behavior": "fail", "auxiliary_wait_s": 0}, "auxiliary", 0),
        ({"limit_behavior": "fail", "clients": CODEX}, "parent", 30),
    ],
)
def test_who_may_wait_and_how_long(changes: dict[str, Any], lane: Lane, patience_s: float) -> None:
    assert find_patience_s(msgspec.structs.replace(QUEUE, **changes), ask(lane)) == patience_s


def test_side_requests_take_no_room_of_the_others() -> None:
    full = stand(ask(), ask("child", parent="p"))
    assert not has_room(QUEUE, full, ask())
    assert has_room(QUEUE, full, ask("auxiliary"))
    assert not has_room(QUEUE, stand(*[ask("auxiliary")] * AUXILIARY_LIMIT), ask("auxiliary"))
    assert has_room(QUEUE, stand(*[ask("auxiliary")] * AUXILIARY_LIMIT), ask())
    assert not has_room(msgspec.structs.replace(QUEUE, auxiliary_wait_s=0), full, ask("auxiliary"))


@pytest.mark.parametrize(
    ("changes", "code", "is_wanted"),
    [
        ({}, "in_flight_full", True),
        ({}, "memory_too_small", True),
        ({}, "depth_exceeded", False),
        ({}, "draining", False),
        ({"overflow_to": ""}, "in_flight_full", False),
        ({"limit_behavior": "fail"}, "in_flight_full", False),
        ({"clients": CODEX}, "in_flight_full", False),
    ],
)
def test_what_is_over_a_limit_goes_elsewhere_where_the_policy_says_so(
    changes: dict[str, Any], code: RefusalCode, is_wanted: bool
) -> None:
    policy = AdmissionPolicy(limit_behavior="overflow", overflow_to="big")
    assert wants_overflow(msgspec.structs.replace(policy, **changes), ask(), Refuse(code)) == is_wanted


def test_parents_stand_before_children_and_each_as_they_came() -> None:
    line = stand(ask("child"), ask("auxiliary"), ask("parent"), ask("unknown"), ask("child"), ask("parent"))
    assert [each.number for each in order_line(line)] == [2, 3, 5, 0, 1, 4]


def pick(policy: AdmissionPolicy, line: tuple[InLine, ...], *held: Asked) -> int | None:
    load = Load(tuple(Held("r", each.place, each.prompt_tokens + 10) for each in held))
    picked = pick_next(policy, load, line)
    return None if picked is None else picked[0].number


def test_nobody_overtakes_who_waits_for_what_all_share() -> None:
    policy = AdmissionPolicy(max_in_flight=3, context_budget_tokens=1000)
    large, small = ask(prompt=900), ask(prompt=10)
    assert pick(policy, stand(large, small), ask(prompt=200)) is None
    assert pick(policy, stand(small, large), ask(prompt=200)) == 0
    assert pick(policy, stand(large, ask("child", parent="s")), ask(prompt=200)) is None, "nor does a child"


def test_a_limit_of_ones_own_holds_up_nobody_else() -> None:
    policy = AdmissionPolicy(max_in_flight=9, subagents=SubagentPolicy(max_concurrent=1, sampling_limit=4))
    first, second = ask("child", "a2", "a"), ask("child", "b1", "b")
    assert pick(policy, stand(first, second), ask("child", "a1", "a")) == 1
    assert pick(policy, stand(first, ask("auxiliary")), ask("child", "a1", "a")) == 1
    own = msgspec.structs.replace(policy, clients={"codex": ClientPolicy(max_in_flight=1)})
    assert pick(own, stand(ask(), ask(client="goose/1")), ask()) == 1


def test_what_an_idle_server_would_refuse_is_hopeless() -> None:
    policy = AdmissionPolicy(max_in_flight=1, context_budget_tokens=100)
    load = Load((Held("r", ask().place, 90),))
    assert find_hopeless(policy, load, ask()) is None
    assert isinstance(find_hopeless(policy, load, ask(prompt=1000)), Refuse)
    ending = msgspec.structs.replace(load, draining=True)
    assert find_hopeless(policy, ending, ask()) == Refuse("draining", in_flight=1)


lanes = st.sampled_from(["parent", "child", "auxiliary", "unknown"])
requests = st.builds(
    lambda lane, session, prompt: ask(lane, f"s{session}", "p" if lane == "child" else None, prompt),
    lanes, st.integers(0, 3), st.integers(1, 600),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(requests, max_size=8), st.lists(requests, max_size=4), st.integers(1, 4), st.booleans())
def test_who_is_picked_may_start_and_nobody_of_its_lane_before_it_could(
    waiting: list[Asked], running: list[Asked], places: int, has_memory: bool
) -> None:
    policy = AdmissionPolicy(max_in_flight=places, context_budget_tokens=1000)
    memory = MemoryPlan(2**30, 0, StreamCost(0, 2**19)) if has_memory else MemoryPlan()
    load = Load(tuple(Held("r", each.place, each.prompt_tokens + 10) for each in running), memory=memory)
    line = stand(*waiting)
    picked = pick_next(policy, load, line)
    before = order_line(line)[: order_line(line).index(picked[0])] if picked else []
    assert not any(isinstance(decide(policy, load, each.asked), Admit) for each in before)
    if picked is not None:
        assert decide(policy, load, picked[0].asked) == picked[1]
