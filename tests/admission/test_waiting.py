"""The line as admission keeps it: who comes, waits, is let in, gives up, is sent away."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import Asked
from server.admission.line import AUXILIARY_LIMIT
from server.admission.place import Place
from server.admission.slots import Admission, Permit
from server.errors import ParentGone, Refusal
from server.events import Lane
from server.memory_plan import MemoryPlan
from server.policy import AdmissionPolicy, SubagentPolicy

QUEUE = AdmissionPolicy(max_in_flight=1, limit_behavior="queue", queue_wait_s=60, queue_limit=4)


def ask(request_id: str, lane: Lane = "parent", parent: str | None = None, prompt: int = 10) -> Asked:
    place = Place(f"session {request_id}", parent, int(lane == "child"), lane, "c/1", "")
    return Asked(place, prompt, 10, 10, request_id)


class House:
    """An admission with tasks at its door."""

    def __init__(self, policy: AdmissionPolicy = QUEUE) -> None:
        self.policy = policy
        self.admission = Admission(read_policy=lambda: self.policy)
        self.tasks: dict[str, asyncio.Task[Permit]] = {}
        self.let_in: list[str] = []
        self.came: dict[str, Asked] = {}

    async def come(self, asked: Asked) -> asyncio.Task[Permit]:
        self.came[asked.request_id] = asked

        async def enter() -> Permit:
            permit = await self.admission.enter(asked, self.policy)
            self.let_in.append(asked.request_id)
            return permit

        task = self.tasks[asked.request_id] = asyncio.create_task(enter())
        await settle()
        return task

    async def leave(self, request_id: str) -> None:
        self.tasks[request_id].result().release()
        await settle()


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def refusal_of(task: asyncio.Task[Permit]) -> Refusal:
    error = task.exception()
    assert isinstance(error, Refusal)
    return error


async def test_who_waits_holds_no_slot_and_gets_the_one_that_is_given_back() -> None:
    house = House()
    await house.come(ask("a"))
    waiting = await house.come(ask("b"))
    assert (house.admission.in_flight, house.admission.waiting, waiting.done()) == (1, 1, False)
    await house.leave("a")
    assert (house.admission.in_flight, house.admission.waiting, house.let_in) == (1, 0, ["a", "b"])
    await house.leave("b")
    assert house.admission.in_flight == 0


async def test_parents_go_before_children_and_each_in_the_order_of_arrival() -> None:
    house = House()
    for asked in (ask("a"), ask("child", "child", "x"), ask("b"), ask("title", "auxiliary"), ask("c")):
        await house.come(asked)
    for request_id in ("a", "b", "c", "child", "title"):
        await house.leave(request_id)
    assert house.let_in == ["a", "b", "c", "child", "title"]


async def test_one_that_could_start_does_not_overtake_who_waits_for_the_same() -> None:
    house = House(msgspec.structs.replace(QUEUE, max_in_flight=3, context_budget_tokens=1000))
    await house.come(ask("a", prompt=500))
    await house.come(ask("large", prompt=900))
    small = await house.come(ask("small", prompt=10))
    assert not small.done()
    await house.leave("a")
    assert house.let_in == ["a", "large", "small"]


async def test_when_the_large_one_leaves_the_line_who_stood_behind_it_starts() -> None:
    house = House(msgspec.structs.replace(QUEUE, max_in_flight=3, context_budget_tokens=1000))
    await house.come(ask("a", prompt=500))
    large, small = await house.come(ask("large", prompt=900)), await house.come(ask("small", prompt=10))
    large.cancel()
    await settle()
    assert small.done()


async def test_who_waited_long_enough_is_refused_and_told_so() -> None:
    house = House(msgspec.structs.replace(QUEUE, queue_wait_s=0.01))
    await house.come(ask("a"))
    task = await house.come(ask("b"))
    await asyncio.wait((task,), timeout=5)
    refusal = refusal_of(task)
    assert (refusal.code, refusal.limit, refusal.used, refusal.key) == ("in_flight_full", 1, 1, "policy.max_in_flight")
    assert refusal.message.endswith("It waited 0 s for that.")
    assert refusal.retry_after_s is not None
    assert house.admission.waiting == 0


async def test_more_than_may_wait_are_refused_at_once() -> None:
    house = House()
    await house.come(ask("a"))
    for number in range(QUEUE.queue_limit):
        await house.come(ask(f"w{number}"))
    task = await house.come(ask("late"))
    assert refusal_of(task).code == "in_flight_full"
    assert house.admission.waiting == QUEUE.queue_limit


async def test_behind_a_full_line_one_that_could_start_is_told_of_the_line() -> None:
    house = House(msgspec.structs.replace(QUEUE, max_in_flight=3, context_budget_tokens=1000, queue_limit=1))
    await house.come(ask("a", prompt=500))
    await house.come(ask("large", prompt=900))
    refusal = refusal_of(await house.come(ask("small", prompt=10)))
    assert (refusal.key, refusal.limit, refusal.used) == ("policy.queue_limit", 1, 1)


@pytest.mark.parametrize("behavior", ["fail", "overflow"])
async def test_side_requests_wait_whatever_the_policy_says_of_others(behavior: Any) -> None:
    house = House(msgspec.structs.replace(QUEUE, limit_behavior=behavior, overflow_to="big"))
    await house.come(ask("a"))
    refused, waiting = await house.come(ask("b")), await house.come(ask("title", "auxiliary"))
    assert refusal_of(refused).overflow == (behavior == "overflow")
    await house.leave("a")
    assert waiting.done()
    assert house.let_in == ["a", "title"]


async def test_a_client_that_hangs_up_leaves_the_line_at_once() -> None:
    house = House()
    await house.come(ask("a"))
    task, behind = await house.come(ask("b")), await house.come(ask("c"))
    task.cancel()
    await settle()
    assert house.admission.waiting == 1
    await house.leave("a")
    assert behind.done()
    assert house.admission.in_flight == 1


async def test_a_slot_that_is_given_to_one_who_hangs_up_at_that_moment_is_given_to_the_next() -> None:
    house = House()
    first = await house.come(ask("a"))
    task, behind = await house.come(ask("b")), await house.come(ask("c"))
    first.result().release()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert behind.done()
    assert (house.admission.in_flight, house.let_in) == (1, ["a", "c"])


async def test_a_wait_is_cancelled_by_its_id() -> None:
    house = House()
    await house.come(ask("a"))
    task = await house.come(ask("b"))
    assert not house.admission.cancel_waiting("a", ParentGone()), "it does not wait"
    assert house.admission.cancel_waiting("b", ParentGone())
    await settle()
    assert isinstance(task.exception(), ParentGone)
    assert not house.admission.cancel_waiting("b", ParentGone())


async def test_a_server_that_takes_nothing_new_refuses_who_waits() -> None:
    house = House()
    await house.come(ask("a"))
    task = await house.come(ask("b"))
    house.admission.drain()
    await settle()
    assert refusal_of(task).code == "draining"
    assert "waits for its 1 in flight" in refusal_of(task).message
    assert refusal_of(await house.come(ask("c"))).code == "draining"


async def test_another_policy_is_felt_by_who_waits() -> None:
    house = House()
    await house.come(ask("a"))
    task, child = await house.come(ask("b")), await house.come(ask("child", "child", "x"))
    house.policy = msgspec.structs.replace(QUEUE, max_in_flight=2, subagents=SubagentPolicy(max_depth=0))
    house.admission.serve_line()
    await settle()
    assert task.done()
    assert (refusal_of(child).code, refusal_of(child).retry_after_s) == ("depth_exceeded", None)


async def test_what_never_may_start_does_not_wait() -> None:
    house = House()
    await house.come(ask("a"))
    task = await house.come(Asked(msgspec.structs.replace(ask("x", "child", "p").place, depth=9), 10, 10, 10))
    assert refusal_of(task).code == "depth_exceeded"


async def test_one_is_let_in_at_a_time_where_rates_are_forecast() -> None:
    house = House(msgspec.structs.replace(QUEUE, max_in_flight=2, min_decode_tps=1))
    first, second = await house.come(ask("a")), await house.come(ask("b"))
    waiting = [await house.come(ask("c")), await house.come(ask("d"))]
    house.admission._held.clear()  # pyright: ignore[reportPrivateUsage]  # both slots free at the same moment
    house.admission.serve_line()
    await settle()
    assert [task.done() for task in waiting] == [True, False]
    house.admission.serve_line()
    await settle()
    assert waiting[1].done()
    assert first.done()
    assert second.done()


async def test_each_in_line_knows_its_place_and_when_its_turn_comes() -> None:
    house = House()
    await house.come(ask("a"))
    assert house.admission.line_places() == {}
    await house.come(ask("child", "child", "x"))
    await house.come(ask("b"))
    places = house.admission.line_places()
    assert {name: place.position for name, place in places.items()} == {"b": 1, "child": 2}
    waits = [places[name].expected_wait_s for name in ("b", "child")]
    assert waits == [10.0, 20.0], "nothing has a rate yet"


actions = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from(["parent", "child", "auxiliary", "unknown"]), st.integers(1, 400)),
        st.tuples(st.just("leave"), st.integers(0, 50)),
        st.tuples(st.just("hang up"), st.integers(0, 50)),
        st.tuples(st.just("limit"), st.integers(1, 4)),
        st.tuples(st.just("behave"), st.sampled_from(["fail", "queue"])),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=100)
@given(actions)
def test_under_any_arrivals_no_limit_is_passed_no_slot_leaks_and_every_wait_ends(sequence: list[Any]) -> None:
    asyncio.run(_run(sequence, queue_limit=3))


@settings(deadline=None, max_examples=100)
@given(actions)
def test_where_all_may_wait_parents_are_let_in_in_the_order_of_arrival(sequence: list[Any]) -> None:
    house = asyncio.run(_run([action for action in sequence if action[0] != "behave"], queue_limit=100))
    parents = [int(name) for name in house.let_in if house.came[name].place.lane in ("parent", "unknown")]
    assert parents == sorted(parents)


async def _run(sequence: list[Any], queue_limit: int) -> House:
    subagents = SubagentPolicy(max_concurrent=1, sampling_limit=2)
    policy = AdmissionPolicy(2, "queue", queue_limit, 60, 60, context_budget_tokens=1000, subagents=subagents)
    house, peak = House(policy), 2
    for number, action in enumerate(sequence):
        held = [name for name, task in house.tasks.items() if _holds(task)]
        waiting = [name for name, task in house.tasks.items() if not task.done()]
        match action:
            case ("come", lane, int(prompt)):
                asked = ask(str(number), lane, f"p{number % 2}" if lane == "child" else None, prompt)
                refused = house.admission.find_refusal(asked, house.policy)
                task = await house.come(asked)
                if refused is None:
                    assert not task.done() or task.exception() is None or _is_behind_a_full_line(task)
                else:
                    assert refusal_of(task).code == refused.code
            case ("leave", int(place)) if held:
                await house.leave(held[place % len(held)])
            case ("hang up", int(place)) if waiting:
                house.tasks[waiting[place % len(waiting)]].cancel()
                await settle()
            case ("limit", int(limit)):
                house.policy, peak = msgspec.structs.replace(house.policy, max_in_flight=limit), max(peak, limit)
                house.admission.serve_line()
                await settle()
            case ("behave", behavior):
                house.policy = msgspec.structs.replace(house.policy, limit_behavior=behavior)
            case _:
                pass
        _check_limits(house, house.came, peak)
    await _check_all_end(house)
    return house


def _holds(task: asyncio.Task[Permit]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and task.result().is_held


def _is_behind_a_full_line(task: asyncio.Task[Permit]) -> bool:
    return refusal_of(task).key == "policy.queue_limit"


def _check_limits(house: House, came: dict[str, Asked], peak: int) -> None:
    held = [came[name] for name, task in house.tasks.items() if _holds(task)]
    children = [each.place.parent_session for each in held if each.place.lane == "child"]
    assert house.admission.in_flight == len(held) <= peak
    assert len(children) <= 2
    assert len(set(children)) == len(children), "one of each parent"
    assert sum(each.prompt_tokens + 10 for each in held) <= 1000
    waiting = [came[name] for name, task in house.tasks.items() if not task.done()]
    assert house.admission.waiting == len(waiting)
    assert sum(each.place.lane != "auxiliary" for each in waiting) <= house.policy.queue_limit
    assert sum(each.place.lane == "auxiliary" for each in waiting) <= AUXILIARY_LIMIT


async def _check_all_end(house: House) -> None:
    for _ in range(len(house.tasks) + 1):
        for name in [name for name, task in house.tasks.items() if _holds(task)]:
            await house.leave(name)
    assert all(task.done() for task in house.tasks.values()), "every wait ends"
    assert (house.admission.in_flight, house.admission.waiting) == (0, 0)
    for task in house.tasks.values():
        if not task.cancelled():
            task.exception()


def test_the_line_needs_no_memory_plan() -> None:
    assert Admission(read_memory=MemoryPlan).line_places() == {}
