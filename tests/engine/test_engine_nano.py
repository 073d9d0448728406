"""The embedded model, the engine and the dispatcher together, on an asyncio loop as the server runs them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from server.engine.dispatch import Dispatcher, Generation
from server.engine.engine import Engine
from server.engine.request import EngineRequest, Sampling
from server.errors import EngineDead
from server.events import EngineEvent, Outcome, PrefillAdvanced, SequenceEnded, TokensEmitted
from server.models.loader import load_model
from server.policy import EnginePolicy

PROMPT = tuple(range(100, 140))
OTHER_PROMPT = tuple(range(900, 1000))


class Served:
    """The parts that the server connects."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.policy = EnginePolicy(prefill_chunk_tokens=32)
        self.engine = Engine(lambda: load_model("nano", "auto"), self.deliver, lambda: self.policy)
        self.dispatcher = Dispatcher(self.engine, lambda events: None)
        self.left: list[str] = []

    def deliver(self, events: tuple[EngineEvent, ...]) -> None:
        self._loop.call_soon_threadsafe(self.dispatcher.receive, events)

    def open(self, name: str, prompt: tuple[int, ...], tokens: int, sampling: Sampling | None = None) -> Generation:
        request = EngineRequest(name, prompt, tokens, sampling or Sampling(temperature=0), frozenset({0}))
        return self.dispatcher.submit(request, lambda: self.left.append(name))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await asyncio.wrap_future(served.engine.start())
    yield served
    assert await asyncio.to_thread(served.engine.stop, 20)
    gc.unfreeze()


async def read(generation: Generation) -> tuple[list[int], Outcome | None]:
    tokens: list[int] = []
    outcome: Outcome | None = None
    async for event in generation:
        match event:
            case TokensEmitted():
                tokens.extend(event.token_ids)
            case SequenceEnded():
                outcome = event.outcome
            case _:
                pass
    return tokens, outcome


async def test_two_streams_get_the_text_that_each_gets_alone(served: Served) -> None:
    sampled = Sampling(temperature=0.8, top_p=0.9, top_k=40, seed=4)
    alone = await read(served.open("a", PROMPT, 24)), await read(served.open("b", OTHER_PROMPT, 24, sampled))
    served.policy = EnginePolicy(prefill_chunk_tokens=7)
    again = served.open("a2", PROMPT, 24), served.open("b2", OTHER_PROMPT, 24, sampled)
    assert tuple(await asyncio.gather(*map(read, again))) == alone
    assert len(alone[0][0]) == 24 or alone[0][1] == "stop"
    assert sorted(served.left) == ["a", "a2", "b", "b2"]


async def test_a_cancel_in_prefill_frees_its_place_and_the_next_one_runs(served: Served) -> None:
    generation = served.open("long", PROMPT * 20, 50)
    async for event in generation:
        assert isinstance(event, PrefillAdvanced | SequenceEnded)
        generation.cancel()
    assert served.left == ["long"]
    assert served.dispatcher.open_ids == ()
    assert len((await read(served.open("next", PROMPT, 3)))[0]) == 3


async def test_stopping_the_engine_ends_open_streams_and_refuses_later_ones(served: Served) -> None:
    generation = served.open("a", PROMPT, 4000)
    await anext(generation)
    assert await asyncio.to_thread(served.engine.stop, 20)
    assert (await read(generation))[1] == "cancelled"
    with pytest.raises(EngineDead):
        served.open("b", PROMPT, 5)
    assert served.left == ["a"]
