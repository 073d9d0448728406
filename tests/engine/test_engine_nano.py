"""The embedded model, the engine and the dispatcher together, on an asyncio loop as the server runs them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from server.engine.dispatch import Dispatcher, Generation
from server.engine.engine import Engine
from server.engine.request import EngineRequest, Sampling
from server.engine.step import StepRunner
from server.errors import EngineDead
from server.events import EngineEvent, Outcome, PrefillAdvanced, SequenceEnded, TokenLogprob, TokensEmitted
from server.models.cache import Forward, Segment, ServedModel
from server.models.loader import load_model
from server.policy import EnginePolicy

PROMPT = tuple(range(100, 140))
OTHER_PROMPT = tuple(range(900, 1000))
GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=3)


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

    def take(event: EngineEvent) -> bool:
        nonlocal outcome
        match event:
            case TokensEmitted():
                tokens.extend(event.token_ids)
            case SequenceEnded():
                outcome = event.outcome
            case _:
                pass
        return False

    await generation.read(take)
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

    def take(event: EngineEvent) -> bool:
        assert isinstance(event, PrefillAdvanced | SequenceEnded)
        generation.cancel()
        return False

    await generation.read(take)
    assert served.left == ["long"]
    assert served.dispatcher.open_ids == ()
    assert len((await read(served.open("next", PROMPT, 3)))[0]) == 3


async def test_stopping_the_engine_ends_open_streams_and_refuses_later_ones(served: Served) -> None:
    generation = served.open("a", PROMPT, 4000)
    await generation.read(lambda _: True)
    assert await asyncio.to_thread(served.engine.stop, 20)
    assert (await read(generation))[1] == "cancelled"
    with pytest.raises(EngineDead):
        served.open("b", PROMPT, 5)
    assert served.left == ["a"]


@pytest.fixture(scope="module")
def nano() -> ServedModel:
    return load_model("nano", "float32")


def run_steps(
    model: ServedModel,
    mtp: object,
    *requests: EngineRequest,
    chunk: int = 64,
    told: dict[str, list[TokenLogprob]] | None = None,
) -> dict[str, list[int]]:
    runner, got = StepRunner(model), {request.id: list[int]() for request in requests}
    for request in requests:
        assert runner.add(request) == ()
    while not runner.idle:
        for event in runner.run_step(EnginePolicy(prefill_chunk_tokens=chunk, mtp=mtp)):  # type: ignore[arg-type]
            if isinstance(event, TokensEmitted):
                got[event.request_id] += event.token_ids
                if told is not None:
                    told.setdefault(event.request_id, []).extend(event.logprobs)
    return got


def ask_nano(name: str, prompt: int, tokens: int, sampling: Sampling) -> EngineRequest:
    ids = tuple((37 * prompt + 101 * place) % 3000 + 20 for place in range(prompt))
    return EngineRequest(name, ids, tokens, sampling, frozenset())


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mtp", ["auto", 1, 2, 3, 4])
def test_drafting_changes_no_text_alone_or_beside_siblings(nano: ServedModel, mtp: object, sampling: Sampling) -> None:
    requests = [ask_nano(f"p{prompt}", prompt, 24, sampling) for prompt in (1, 5, 64, 65, 130)]
    plain = run_steps(nano, "off", *requests)
    assert run_steps(nano, mtp, *requests) == plain
    assert run_steps(nano, mtp, requests[2], chunk=7) == {requests[2].id: plain[requests[2].id]}


def test_drafting_changes_no_text_past_the_attention_budget(nano: ServedModel) -> None:
    requests = [ask_nano("long", 1100, 16, GREEDY), ask_nano("short", 9, 40, GREEDY)]
    assert run_steps(nano, 3, *requests, chunk=256) == run_steps(nano, "off", *requests, chunk=256)


@pytest.mark.parametrize("mtp", ["off", 2])
def test_prompts_that_begin_alike_are_read_once_and_change_no_text(nano: ServedModel, mtp: object) -> None:
    trunk = ask_nano("trunk", 900, 1, GREEDY).prompt_ids
    requests = [
        EngineRequest(name, (*trunk[:common], *range(50 + common, 90 + common)), 24, sampling, frozenset())
        for name, common, sampling in (("a", 900, GREEDY), ("b", 700, SAMPLED), ("c", 701, GREEDY))
    ]
    plain = {request.id: run_steps(nano, "off", request)[request.id] for request in requests}
    assert run_steps(nano, mtp, *requests, chunk=256) == plain


SHAPED = Sampling(temperature=0, frequency_penalty=0.8, repetition_penalty=1.3, logit_bias=((40, 3.0), (41, -100.0)))


@pytest.mark.parametrize("mtp", [1, 2, 3, 4])
def test_drafting_changes_neither_shaped_text_nor_logprobs(nano: ServedModel, mtp: object) -> None:
    requests = [
        replace(ask_nano(name, prompt, 30, sampling), top_logprobs=3)
        for name, prompt, sampling in (("a", 9, SHAPED), ("b", 70, replace(SAMPLED, presence_penalty=1.5)))
    ]
    plain: dict[str, list[TokenLogprob]] = {}
    drafted: dict[str, list[TokenLogprob]] = {}
    assert run_steps(nano, mtp, *requests, told=drafted) == run_steps(nano, "off", *requests, told=plain)
    for name in "ab":
        assert len(plain[name]) == 30
        for one, other in zip(drafted[name], plain[name], strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-3)


class Stumbling:
    """The model, but every third pass of several sequences raises when its work is half done or wholly done."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.stumbles = 0
        self._passes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, segments: Sequence[Segment]) -> Forward:
        self._passes += 1
        if len(segments) == 1 or self._passes % 3:
            return self._model.forward(segments)
        self.stumbles += 1
        self._model.forward(segments if self.stumbles % 2 else segments[:1])
        raise ValueError("lost my footing")


def test_a_pass_that_fails_for_all_and_for_none_alone_leaves_no_trace(nano: ServedModel) -> None:
    requests = [ask_nano(f"p{prompt}", prompt, 30, SAMPLED) for prompt in (4, 70, 90)]
    stumbling = Stumbling(nano)
    assert run_steps(cast("ServedModel", stumbling), 2, *requests) == run_steps(nano, "off", *requests)
    assert stumbling.stumbles > 4
