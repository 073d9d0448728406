from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.dispatch import Dispatcher, Generation
from server.engine.request import EngineRequest, Sampling
from server.errors import EngineDead, FormLost, SequenceFailed, ServerEnding
from server.events import (
    EngineDied,
    EngineEvent,
    MemorySampled,
    Outcome,
    PrefillAdvanced,
    SequenceEnded,
    TokenLogprob,
    TokensEmitted,
)


class Inbox:
    """Stands for the engine: remembers what it was asked."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.dead: str | None = None

    def submit(self, request: EngineRequest) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)
        self.submitted.append(request.id)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


class Desk:
    """A dispatcher on an inbox, with all it told others."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.observed: list[tuple[EngineEvent, ...]] = []
        self.left: list[str] = []
        self.dispatcher = Dispatcher(self.inbox, self.observed.append)

    def open(self, request_id: str = "a", on_left: Callable[[], None] | None = None) -> Generation:
        request = EngineRequest(request_id, (1, 2, 3), 9, Sampling(), frozenset())
        return self.dispatcher.submit(request, on_left or (lambda: self.left.append(request_id)))

    def receive(self, *events: EngineEvent) -> None:
        self.dispatcher.receive(events)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def chunk(done: int, tokens: int = 8, request_id: str = "a") -> PrefillAdvanced:
    return PrefillAdvanced(request_id, done, tokens, 0.5)


def emitted(*token_ids: int, request_id: str = "a", at_s: float = 1.0) -> TokensEmitted:
    return TokensEmitted(request_id, token_ids, at_s)


def ended(
    outcome: Outcome = "stop", request_id: str = "a", error: str | None = None, *, has_lost_form: bool = False
) -> SequenceEnded:
    return SequenceEnded(request_id, outcome, 2.0, error, has_lost_form)


async def read(generation: Generation) -> list[EngineEvent]:
    events: list[EngineEvent] = []
    await generation.read(lambda event: events.append(event) is not None)
    return events


async def read_one(generation: Generation) -> EngineEvent:
    events: list[EngineEvent] = []
    await generation.read(lambda event: events.append(event) is None)
    return events[0]


async def test_a_reader_gets_its_own_events_in_order(desk: Desk) -> None:
    a, b = desk.open("a"), desk.open("b")
    desk.receive(chunk(8), emitted(5), emitted(6, request_id="b"), ended(), ended("length", "b"))
    assert await read(a) == [chunk(8), emitted(5), ended()]
    assert await read(b) == [emitted(6, request_id="b"), ended("length", "b")]


async def test_a_waiting_reader_is_woken_by_each_step(desk: Desk) -> None:
    reader = asyncio.create_task(read(desk.open()))
    for event in (chunk(8), emitted(1), emitted(2), ended()):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        desk.receive(event)
    assert await reader == [chunk(8), emitted(1), emitted(2), ended()]


async def test_what_a_slow_reader_missed_is_merged(desk: Desk) -> None:
    generation = desk.open()
    desk.receive(chunk(8), chunk(16))
    desk.receive(emitted(1, at_s=1.0), emitted(2, 3, at_s=4.0))
    desk.receive(ended("length"))
    assert await read(generation) == [
        PrefillAdvanced("a", 16, 16, 1.0),
        TokensEmitted("a", (1, 2, 3), 4.0),
        ended("length"),
    ]


async def test_merging_keeps_every_logprob_and_what_was_not_computed(desk: Desk) -> None:
    generation = desk.open()
    desk.receive(PrefillAdvanced("a", 64, 0, 0.0, cached_tokens=64), PrefillAdvanced("a", 72, 8, 0.5, cached_tokens=64))
    one, two, three = (TokenLogprob(-0.5 * number, ((number, -0.25),)) for number in range(3))
    desk.receive(TokensEmitted("a", (1,), 1.0, logprobs=(one,)), TokensEmitted("a", (2, 3), 4.0, logprobs=(two, three)))
    assert await read_one(generation) == PrefillAdvanced("a", 72, 8, 0.5, cached_tokens=64)
    assert await read_one(generation) == TokensEmitted("a", (1, 2, 3), 4.0, logprobs=(one, two, three))
    desk.receive(emitted(4), ended())
    assert await read(generation) == [emitted(4), ended()]


async def test_a_finished_generation_stays_finished(desk: Desk) -> None:
    generation = desk.open()
    desk.receive(ended())
    assert await read(generation) == [ended()]
    assert await read(generation) == []


async def test_a_failed_sequence_raises_after_what_came_before(desk: Desk) -> None:
    generation = desk.open()
    desk.receive(emitted(1), ended("failed", error="The scores are not numbers."))
    assert await read_one(generation) == emitted(1)
    for _ in range(2):
        with pytest.raises(SequenceFailed, match="The scores are not numbers"):
            await read_one(generation)
    assert desk.left == ["a"]


async def test_a_lost_form_is_told_from_other_failures(desk: Desk) -> None:
    generation = desk.open()
    desk.receive(ended("failed", error="Too wide.", has_lost_form=True))
    with pytest.raises(FormLost, match="Too wide"):
        await read_one(generation)


async def test_a_failure_told_to_all_reaches_each_reader_and_frees_slots_only_when_the_engine_lets_go(
    desk: Desk,
) -> None:
    one, two = desk.open("one"), desk.open("two")
    desk.receive(TokensEmitted("one", (5,), 1.0))
    desk.dispatcher.fail_open(SequenceFailed("stuck"))
    desk.dispatcher.fail_open(SequenceFailed("stuck"))
    assert isinstance(await read_one(one), TokensEmitted), "what came before is still read"
    for generation in (one, two):
        with pytest.raises(SequenceFailed, match="stuck"):
            await read_one(generation)
    assert (desk.inbox.cancelled, desk.left) == (["one", "two"], [])
    desk.receive(SequenceEnded("one", "cancelled", 2.0), SequenceEnded("two", "cancelled", 2.0))
    assert sorted(desk.left) == ["one", "two"]


async def test_engine_death_reaches_all_open_and_all_later(desk: Desk) -> None:
    a, b, done = desk.open("a"), desk.open("b"), desk.open("done")
    waiting = asyncio.create_task(read(b))
    await asyncio.sleep(0)
    desk.receive(emitted(1), ended(request_id="done"), EngineDied("It broke."))
    first = await read_one(a)
    assert first == emitted(1)
    for dead in (read(a), waiting):
        with pytest.raises(EngineDead, match="It broke"):
            await dead
    assert await read(done) == [ended(request_id="done")]
    with pytest.raises(EngineDead, match="It broke"):
        desk.open("later")
    assert sorted(desk.left) == ["a", "b", "done"]
    assert desk.inbox.submitted == ["a", "b", "done"]
    assert desk.dispatcher.open_ids == ()


async def test_closing_tells_everyone_why_and_frees_every_slot_without_the_engine(desk: Desk) -> None:
    a = desk.open("a")
    desk.receive(emitted(1))
    desk.dispatcher.close(ServerEnding())
    assert await read_one(a) == emitted(1)
    with pytest.raises(ServerEnding, match="shutting down"):
        await read_one(a)
    with pytest.raises(ServerEnding):
        desk.open("later")
    desk.receive(ended(), EngineDied("It broke on the way out."))
    with pytest.raises(ServerEnding):
        desk.open("later")
    assert (desk.left, desk.inbox.submitted, desk.dispatcher.open_ids) == (["a"], ["a"], ())


async def test_a_submit_that_the_engine_refuses_leaves_nothing(desk: Desk) -> None:
    desk.inbox.dead = "gone"
    with pytest.raises(EngineDead, match="gone"):
        desk.open()
    assert desk.left == []
    assert desk.dispatcher.open_ids == ()


async def test_cancel_asks_the_engine_once(desk: Desk) -> None:
    generation = desk.open()
    generation.cancel()
    generation.cancel()
    desk.dispatcher.cancel("a")
    desk.dispatcher.cancel("nobody")
    assert desk.inbox.cancelled == ["a"]
    assert desk.left == []
    desk.receive(ended("cancelled"))
    generation.cancel()
    assert desk.inbox.cancelled == ["a"]
    assert desk.left == ["a"]
    assert await read(generation) == [ended("cancelled")]


async def test_a_generation_dropped_by_its_reader_is_cancelled_and_forgotten(desk: Desk) -> None:
    generation = desk.open()
    reader = asyncio.create_task(read(generation))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    del generation, reader
    gc.collect()
    assert desk.inbox.cancelled == ["a"]
    desk.receive(emitted(1), ended("cancelled"))
    assert desk.dispatcher.open_ids == ()
    assert desk.left == ["a"]


async def test_everything_is_observed_and_strangers_are_ignored(desk: Desk) -> None:
    desk.open()
    events = (MemorySampled(1, 2, 3), emitted(1, request_id="stranger"), ended(request_id="stranger"))
    desk.receive(*events)
    assert desk.observed == [events]
    assert desk.dispatcher.open_ids == ("a",)


async def test_a_second_end_calls_nobody(desk: Desk) -> None:
    desk.open()
    desk.receive(ended(), ended())
    desk.receive(ended(), EngineDied("It broke."))
    assert desk.left == ["a"]


async def test_a_fault_in_observe_or_on_left_keeps_nothing_from_the_others() -> None:
    def fault(events: tuple[EngineEvent, ...] = ()) -> None:
        raise ZeroDivisionError

    desk = Desk()
    desk.dispatcher = Dispatcher(desk.inbox, fault)
    a, b = desk.open("a", on_left=fault), desk.open("b")
    with pytest.raises(ZeroDivisionError):
        desk.receive(ended(request_id="a"), ended(request_id="b"))
    assert await read(a) == [ended(request_id="a")]
    assert await read(b) == [ended(request_id="b")]
    assert desk.left == ["b"]


async def test_the_slot_is_free_only_when_the_observer_knows_of_the_end(desk: Desk) -> None:
    order: list[str] = []
    desk.dispatcher = Dispatcher(desk.inbox, lambda events: order.append("observed"))
    desk.open(on_left=lambda: order.append("left"))
    desk.receive(ended())
    assert order == ["observed", "left"]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("prefill"), st.integers(0, 2)),
        st.tuples(st.just("tokens"), st.integers(0, 2)),
        st.tuples(st.just("read"), st.integers(0, 2)),
        st.tuples(st.just("cancel"), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 2)),
        st.tuples(st.just("die"), st.just(0)),
    ),
    max_size=40,
)


@given(actions)
@settings(max_examples=150, deadline=None)
def test_any_order_of_events_and_reads_loses_and_repeats_nothing(script: list[tuple[str, int]]) -> None:
    asyncio.run(_play(script))


async def _play(script: list[tuple[str, int]]) -> None:
    desk = Desk()
    names = ["0", "1", "2"]
    generations = {name: desk.open(name) for name in names}
    sent: dict[str, list[int]] = {name: [] for name in names}
    got: dict[str, list[int]] = {name: [] for name in names}
    for number, (action, index) in enumerate(script):
        name = names[index]
        is_open = name in desk.dispatcher.open_ids
        match action:
            case "prefill":
                desk.receive(chunk(number, request_id=name))
            case "tokens":
                desk.receive(emitted(number, request_id=name))
                sent[name] += [number] if is_open else []
            case "read":
                got[name] += await _read_what_is_there(generations[name])
            case "cancel":
                generations[name].cancel()
            case "end":
                desk.receive(ended(request_id=name))
            case _:
                desk.receive(EngineDied("It broke."))
    desk.receive(*(ended(request_id=name) for name in names))
    for name in names:
        got[name] += await _read_what_is_there(generations[name])
    assert got == sent
    assert sorted(desk.left) == names
    assert len(desk.inbox.cancelled) == len(set(desk.inbox.cancelled))
    assert desk.dispatcher.open_ids == ()


async def _read_what_is_there(generation: Generation) -> list[int]:
    """Token ids of all unread events; at most one event of each kind is ever unread."""
    events: list[EngineEvent] = []
    try:
        async with asyncio.timeout(0):
            await generation.read(lambda event: events.append(event) is not None)
    except (TimeoutError, EngineDead):
        pass
    assert len(events) <= 3
    return [token for event in events if isinstance(event, TokensEmitted) for token in event.token_ids]


async def test_an_event_is_read_where_it_arrives_without_a_turn_of_the_loop(desk: Desk) -> None:
    generation = desk.open("a")
    got: list[EngineEvent] = []
    reading = asyncio.create_task(generation.read(lambda event: got.append(event) is not None))
    await asyncio.sleep(0)
    desk.receive(emitted(5))
    assert got == [emitted(5)]
    desk.receive(ended())
    await reading
    assert got == [emitted(5), ended()]


async def test_a_fault_of_one_reader_is_its_own(desk: Desk) -> None:
    def break_down(event: EngineEvent) -> bool:
        raise ValueError("broken")

    a, b = desk.open("a"), desk.open("b")
    reading = asyncio.create_task(a.read(break_down))
    other = asyncio.create_task(read(b))
    await asyncio.sleep(0)
    desk.receive(emitted(5), emitted(6, request_id="b"))
    desk.receive(ended(request_id="a"), ended(request_id="b"))
    with pytest.raises(ValueError, match="broken"):
        await reading
    assert await other == [emitted(6, request_id="b"), ended(request_id="b")]


async def test_one_stream_is_ended_with_an_error_of_its_own_and_leaves_its_slot_to_the_engine(desk: Desk) -> None:
    one, two = desk.open("one"), desk.open("two")
    desk.dispatcher.end("one", SequenceFailed("with its parent"))
    desk.dispatcher.end("never seen", SequenceFailed("with its parent"))
    with pytest.raises(SequenceFailed, match="with its parent"):
        await read_one(one)
    assert (desk.inbox.cancelled, desk.left) == (["one"], [])
    desk.receive(TokensEmitted("two", (5,), 1.0), SequenceEnded("one", "cancelled", 2.0))
    assert isinstance(await read_one(two), TokensEmitted), "the others go on"
    assert desk.left == ["one"]
