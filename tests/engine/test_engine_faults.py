"""Faults: what ends one sequence, and what ends the engine with everybody told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from server.engine.engine import Engine
from server.engine.request import Sampling
from server.errors import EngineDead, ModelNotFound
from server.events import (
    EngineDied,
    EngineEvent,
    TokensEmitted,
)
from server.policy import EnginePolicy

if TYPE_CHECKING:
    from tests.engine.conftest import Gate, HashModel, RequestMaker, Rig

SAMPLED = Sampling(temperature=1.0, top_p=0.95, top_k=20, min_p=0.01, seed=42)


def poison_forward(model: HashModel, first_token: int, after: int) -> None:
    def before(ids: list[int]) -> None:
        if ids[0] == first_token and len(ids) >= after:
            raise ValueError("bad shape\nwith a second line")

    model.before = before


@pytest.mark.parametrize("after", [1, 12, 30])
def test_a_fault_in_one_forward_ends_that_sequence_alone(rig: Rig, ask: RequestMaker, after: int) -> None:
    rig.prepare = lambda model: poison_forward(model, 60, after)
    rig.start()
    alone = rig.run(ask("b", prompt=30, max_tokens=40))["b"]
    rig.run(ask("bad", (60,) * 20, 40), ask("b2", ask("b", prompt=30).prompt_ids, 40))
    end = rig.end("bad")
    assert end is not None
    assert end.outcome == "failed"
    assert end.error == "The model failed on this sequence: ValueError: bad shape."
    assert rig.tokens("b2") == alone
    assert rig.engine.alive


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0), SAMPLED])
def test_unusable_logits_end_that_sequence_alone(rig: Rig, ask: RequestMaker, value: float, sampling: Sampling) -> None:
    def prepare(model: HashModel) -> None:
        model.spoil = lambda ids: value if ids[0] == 60 and len(ids) > 9 else None

    rig.prepare = prepare
    rig.start()
    rig.run(ask("bad", (60,) * 5, 40, sampling), ask("good", 5, 40, sampling))
    end = rig.end("bad")
    assert end is not None
    assert end.error is not None
    assert end.error.startswith("The model's scores for the next token of this sequence are")
    assert len(rig.tokens("bad")) == 5
    assert len(rig.tokens("good")) == 40


def test_a_state_that_cannot_be_built_ends_that_sequence_alone(rig: Rig, ask: RequestMaker) -> None:
    rig.start()

    def refuse() -> None:
        raise MemoryError

    rig.model.on_build_state = refuse
    rig.run(ask("a"))
    end = rig.end("a")
    assert end is not None
    assert end.error == "The model failed on this sequence: MemoryError."
    rig.model.on_build_state = lambda: None
    assert len(rig.run(ask("b"))["b"]) == 6


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "said"),
    [
        ((), 5, "no tokens"),
        ((3, 61), 5, "outside"),
        ((-1,), 5, "outside"),
        ((2**40,), 5, "outside"),
        ((1,), 0, "at least 1"),
        ((1,) * 4000, 97, "context limit of 4,096"),
    ],
)
def test_a_request_unfit_for_the_model_never_reaches_it(
    rig: Rig, ask: RequestMaker, prompt: tuple[int, ...], max_tokens: int, said: str
) -> None:
    rig.start()
    rig.run(ask("bad", prompt, max_tokens))
    end = rig.end("bad")
    assert end is not None
    assert end.error is not None
    assert said in end.error
    assert rig.model.forwards == []
    assert len(rig.run(ask("good"))["good"]) == 6


def test_ranges_beyond_the_vocabulary_do_not_hurt(rig: Rig, ask: RequestMaker) -> None:
    wild = Sampling(temperature=1.0, top_k=10**9, top_p=1e-300, min_p=1.0, seed=2**70)
    rig.start()
    assert len(rig.run(ask("a", sampling=wild))["a"]) == 6


def test_a_fault_outside_a_sequence_kills_the_engine_and_everyone_hears(rig: Rig, ask: RequestMaker) -> None:
    broken = threading.Event()

    def read_policy() -> EnginePolicy:
        if broken.is_set():
            raise RuntimeError("policy gone")
        return rig.policy

    rig.engine = Engine(rig._build, rig._deliver, read_policy)
    rig.start()
    rig.engine.submit(ask("a", max_tokens=4000))
    rig.wait(lambda: len(rig.tokens("a")) > 2)
    broken.set()
    rig.wait(lambda: isinstance(rig.deliveries[-1][-1], EngineDied))
    reason = "The engine died of a fault: RuntimeError: policy gone."
    assert rig.deliveries[-1] == (EngineDied(reason),)
    assert rig.engine.error == reason
    assert not rig.engine.alive
    for _ in range(2):
        with pytest.raises(EngineDead, match="policy gone"):
            rig.engine.submit(ask("b"))
    rig.engine.cancel("a")
    assert rig.engine.stop(5)
    assert rig.engine.error == reason


def test_a_fault_in_deliver_is_not_silent(rig: Rig, ask: RequestMaker, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(events: tuple[EngineEvent, ...]) -> None:
        if any(isinstance(event, TokensEmitted) for event in events):
            raise OSError("loop closed")

    rig.on_deliver = refuse
    rig.start()
    rig.engine.submit(ask("a"))
    rig.wait(lambda: rig.engine.error is not None and isinstance(rig.deliveries[-1][-1], EngineDied))
    assert rig.engine.error is not None
    assert "loop closed" in rig.engine.error
    with pytest.raises(EngineDead):
        rig.engine.submit(ask("b"))
    assert "the engine died at work" in caplog.text


def test_a_deliver_that_never_works_leaves_its_mark_in_the_log(
    rig: Rig, ask: RequestMaker, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(events: tuple[EngineEvent, ...]) -> None:
        raise OSError("loop closed")

    rig.on_deliver = refuse
    rig.start()
    rig.engine._thread.join(20)
    assert not rig.engine.alive
    assert "nobody could be told" in caplog.text


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (ModelNotFound("There is no checkpoint in /x."), "There is no checkpoint in /x."),
        (KeyError("w"), "The engine died of a fault while loading the model: KeyError: 'w'."),
    ],
)
def test_a_model_that_does_not_load_is_told_to_all(rig: Rig, ask: RequestMaker, fault: Exception, said: str) -> None:
    def refuse(model: HashModel) -> None:
        raise fault

    rig.prepare = refuse
    rig.engine.submit(ask("early"))
    with pytest.raises(type(fault)):
        rig.start()
    assert rig.engine.error == said
    assert rig.deliveries == [(EngineDied(said),)]
    with pytest.raises(EngineDead):
        rig.engine.submit(ask("late"))


def test_giving_up_on_the_load_does_not_harm_it(rig: Rig, ask: RequestMaker, gate: Gate) -> None:
    rig.prepare = lambda model: gate.pass_through([])
    loaded = rig.engine.start()
    assert gate.reached.wait(20)
    assert not loaded.cancel()
    gate.open()
    assert len(rig.run(ask("a"))["a"]) == 6
