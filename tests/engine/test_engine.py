from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from server.engine import scheduler
from server.engine.engine import Engine
from server.engine.request import EngineRequest, Sampling
from server.errors import EngineDead
from server.events import (
    EngineEvent,
    MemorySampled,
    PrefillAdvanced,
    SequenceEnded,
    StepDone,
    TokensEmitted,
)
from server.policy import EnginePolicy

if TYPE_CHECKING:
    from tests.engine.conftest import Gate, HashModel, RequestMaker, Rig

SAMPLED = Sampling(temperature=1.0, top_p=0.95, top_k=20, min_p=0.01, seed=42)


def shape(rig: Rig, step: tuple[EngineEvent, ...]) -> tuple[list[str], list[str]]:
    """Who got a chunk and who got a token in one step."""
    chunks = [event.request_id for event in step if isinstance(event, PrefillAdvanced)]
    return chunks, [event.request_id for event in step if isinstance(event, TokensEmitted)]


def test_start_resolves_with_the_models_facts_and_samples_memory(rig: Rig) -> None:
    facts = rig.start()
    assert facts.id == "hash"
    assert rig.engine.alive
    assert rig.engine.error is None
    rig.wait(lambda: any(isinstance(event, MemorySampled) for event in rig.events()))
    assert rig.delivering_threads == {"homebase-engine"}


def test_a_greedy_sequence_runs_to_its_length(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    tokens = rig.run(ask("a", prompt=20, max_tokens=7))["a"]
    assert len(tokens) == 7
    assert rig.outcome("a") == "length"
    assert rig.chunks("a") == [8, 8, 4]
    assert rig.model.forwards == [(rig.model.forwards[0][0], n) for n in (8, 8, 4, 1, 1, 1, 1, 1, 1)]


def test_one_token_is_drawn_from_the_prompt_alone(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    assert len(rig.run(ask("a", prompt=1, max_tokens=1))["a"]) == 1
    assert len(rig.model.forwards) == 1


def test_a_stop_id_ends_it_and_is_emitted_last(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    tokens = rig.run(ask("a", max_tokens=30))["a"]
    stop = tokens[10]
    stopped = rig.run(ask("b", prompt=ask("a").prompt_ids, max_tokens=30, stop_ids=frozenset({stop})))["b"]
    assert stopped == tokens[: tokens.index(stop) + 1]
    assert rig.outcome("b") == "stop"


def test_a_stop_id_at_the_length_limit_is_a_stop(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    (first,) = rig.run(ask("a", max_tokens=1))["a"]
    rig.run(ask("b", prompt=ask("a").prompt_ids, max_tokens=1, stop_ids=frozenset({first})))
    assert rig.outcome("b") == "stop"


def test_tokens_come_before_the_end_in_one_delivery_led_by_the_step(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    rig.run(ask("a", max_tokens=2))
    last = rig.steps()[-1]
    assert [type(event) for event in last[:3]] == [StepDone, TokensEmitted, SequenceEnded]
    first = rig.steps()[0]
    assert [type(event) for event in first[:3]] == [StepDone, PrefillAdvanced, TokensEmitted]


def test_step_counts_add_up(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    rig.run(ask("a", prompt=30, max_tokens=9), ask("b", prompt=11, max_tokens=4))
    done = [event for event in rig.events() if isinstance(event, StepDone)]
    assert sum(event.prefill_tokens for event in done) == 41
    assert sum(event.decode_tokens for event in done) == 13
    assert all(event.seconds > 0 for event in done)


def test_a_step_tells_how_long_the_contexts_of_those_that_decode_are(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    rig.run(ask("a", prompt=30, max_tokens=4))
    done = [event for event in rig.events() if isinstance(event, StepDone) and not event.prefill_tokens]
    assert [event.context_tokens for event in done] == [30, 31, 32]


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), SAMPLED])
def test_a_sequence_gets_the_tokens_that_it_gets_alone(rig: Rig, ask: RequestMaker, sampling: Sampling) -> None:
    lengths = {"a": (5, 40), "b": (33, 25), "c": (1, 30), "d": (70, 12)}
    requests = [ask(name, prompt, tokens, sampling) for name, (prompt, tokens) in lengths.items()]
    rig.start()
    alone = {request.id: rig.run(request)[request.id] for request in requests}
    beside = rig.run(*(ask(f"{r.id}2", r.prompt_ids, r.max_tokens, sampling) for r in requests))
    assert {name[0]: tokens for name, tokens in beside.items()} == alone
    assert len({tuple(tokens[:5]) for tokens in alone.values()}) == 4


def test_sequences_that_join_at_any_moment_change_nobodys_tokens(rig: Rig, ask: RequestMaker) -> None:
    rng = random.Random(5)
    rig.start()
    requests = [ask(f"r{i}", rng.randint(1, 40), rng.randint(1, 30), SAMPLED) for i in range(12)]
    alone = {request.id: rig.run(request)[request.id] for request in requests}
    for request in requests:
        rig.engine.submit(ask(f"again-{request.id}", request.prompt_ids, request.max_tokens, SAMPLED))
        time.sleep(rng.random() * 0.01)
    rig.wait_end(*(f"again-{request.id}" for request in requests))
    assert {request.id: rig.tokens(f"again-{request.id}") for request in requests} == alone


@pytest.mark.parametrize("chunk", [1, 2, 7, 100])
def test_chunk_size_does_not_change_tokens(rig: Rig, ask: RequestMaker, chunk: int) -> None:
    rig.start()
    reference = rig.run(ask("a", prompt=45, max_tokens=8))["a"]
    rig.policy = EnginePolicy(prefill_chunk_tokens=chunk)
    again = rig.run(ask("b", prompt=ask("a", prompt=45).prompt_ids, max_tokens=8))["b"]
    assert again == reference
    assert max(rig.chunks("b")) == min(chunk, 45)


def test_seeds_give_equal_tokens_again_and_no_seed_gives_others(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    prompt = ask("a").prompt_ids
    seeded, free = Sampling(seed=9), Sampling()
    got = rig.run(*(ask(f"{i}", prompt, 30, sampling) for i, sampling in enumerate([seeded, free, seeded, free])))
    assert got["0"] == got["2"]
    assert got["1"] != got["3"]


def test_a_decoder_gets_a_token_in_every_step_of_a_newcomers_prefill(rig: Rig, ask: RequestMaker) -> None:
    newcomer_waits = threading.Event()

    def submit_when_decoding(events: tuple[EngineEvent, ...]) -> None:
        if not newcomer_waits.is_set() and len(rig.tokens("old")) >= 3:
            newcomer_waits.set()
            rig.engine.submit(ask("new", prompt=80, max_tokens=2))

    rig.on_deliver = submit_when_decoding
    rig.start()
    rig.engine.submit(ask("old", prompt=5, max_tokens=40))
    rig.wait_end("old", "new")
    during = [shape(rig, step) for step in rig.steps() if shape(rig, step)[0] == ["new"]]
    assert len(during) == 10
    assert all("old" in tokens for _, tokens in during)


def test_two_prefills_take_turns(rig: Rig, ask: RequestMaker) -> None:
    rig.engine.submit(ask("a", prompt=40, max_tokens=1))
    rig.engine.submit(ask("b", prompt=40, max_tokens=1))
    rig.start()
    rig.wait_end("a", "b")
    assert [shape(rig, step)[0] for step in rig.steps()] == [["a"], ["b"]] * 5


def test_a_live_edit_of_the_chunk_is_felt_at_the_next_step(rig: Rig, ask: RequestMaker) -> None:
    def edit(events: tuple[EngineEvent, ...]) -> None:
        if len(rig.chunks("a")) == 1:
            rig.policy = EnginePolicy(prefill_chunk_tokens=16)

    rig.on_deliver = edit
    rig.start()
    rig.run(ask("a", prompt=64, max_tokens=1))
    assert rig.chunks("a") == [8, 8, 16, 16, 16]


def test_a_slow_machine_gets_shorter_chunks_than_the_policy_allows(
    rig: Rig, ask: RequestMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LONGEST_CHUNK_S", 0.05)

    def prepare(model: HashModel) -> None:
        model.before = lambda ids: time.sleep(0.01 * model.forwards[-1][1])

    rig.prepare = prepare
    rig.policy = EnginePolicy(prefill_chunk_tokens=32)
    rig.start()
    rig.run(ask("a", prompt=60, max_tokens=1))
    assert rig.chunks("a")[0] == 32
    assert max(rig.chunks("a")[1:]) <= 5


def test_cancel_in_prefill_takes_effect_at_the_next_boundary(rig: Rig, ask: RequestMaker, gate: Gate) -> None:
    def prepare(model: HashModel) -> None:
        model.before = lambda ids: gate.pass_through(ids) if len(ids) == 16 else None

    rig.prepare = prepare
    rig.start()
    rig.engine.submit(ask("a", prompt=400))
    assert gate.reached.wait(20)
    rig.engine.cancel("a")
    gate.open()
    rig.wait_end("a")
    assert rig.outcome("a") == "cancelled"
    assert rig.chunks("a") == [8, 8]
    assert rig.tokens("a") == []


def test_cancel_in_decode_leaves_the_sibling_alone(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    alone = rig.run(ask("b", max_tokens=50))["b"]
    rig.engine.submit(ask("a", max_tokens=4000))
    rig.wait(lambda: len(rig.tokens("a")) > 5)
    rig.engine.submit(ask("b2", prompt=ask("b").prompt_ids, max_tokens=50))
    rig.wait(lambda: len(rig.tokens("b2")) > 5)
    rig.engine.cancel("a")
    rig.wait_end("a", "b2")
    assert rig.outcome("a") == "cancelled"
    assert rig.tokens("b2") == alone


def test_cancel_before_the_start_does_no_work(rig: Rig, ask: RequestMaker) -> None:
    rig.engine.submit(ask("a"))
    rig.engine.cancel("a")
    rig.start()
    rig.wait_end("a")
    assert rig.outcome("a") == "cancelled"
    assert rig.model.forwards == []
    assert rig.steps() == []


def test_a_cancel_is_told_before_the_next_step_runs(rig: Rig, ask: RequestMaker, gate: Gate) -> None:
    def prepare(model: HashModel) -> None:
        model.before = lambda ids: gate.pass_through(ids) if len(ids) == 16 else None

    rig.prepare = prepare
    rig.engine.submit(ask("gone"))
    rig.engine.submit(ask("slow", prompt=400))
    rig.engine.cancel("gone")
    rig.start()
    assert gate.reached.wait(20)
    assert rig.outcome("gone") == "cancelled"


def test_cancelling_twice_late_or_the_unknown_is_fine(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    rig.engine.cancel("nobody")
    rig.run(ask("a"))
    rig.engine.cancel("a")
    rig.engine.cancel("a")
    assert len(rig.run(ask("b"))["b"]) == 6
    assert rig.outcome("a") == "length"


def test_stop_ends_everything_as_cancelled(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    rig.engine.submit(ask("a", max_tokens=4000))
    rig.wait(lambda: len(rig.tokens("a")) > 2)
    rig.engine.submit(ask("b", prompt=4000, max_tokens=5))
    assert rig.engine.stop(20)
    assert rig.outcome("a") == rig.outcome("b") == "cancelled"
    assert not rig.engine.alive
    assert rig.engine.error is None
    with pytest.raises(EngineDead, match="stopped"):
        rig.engine.submit(ask("c"))
    assert rig.engine.stop(1)


def test_stop_while_a_step_blocks_says_so(rig: Rig, ask: RequestMaker, gate: Gate) -> None:
    def prepare(model: HashModel) -> None:
        model.before = gate.pass_through

    rig.prepare = prepare
    rig.start()
    rig.engine.submit(ask("a"))
    assert gate.reached.wait(20)
    assert rig.engine.step_began_s is not None
    assert rig.engine.stop(0.05) is False
    gate.open()
    assert rig.engine.stop(20)
    assert rig.outcome("a") == "cancelled"
    assert rig.engine.step_began_s is None


def test_the_thread_clears_its_streams_after_its_last_event(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[tuple[str, int]] = []
    clear = mx.clear_streams

    def record() -> None:
        cleared.append((threading.current_thread().name, len(rig.deliveries)))
        clear()

    monkeypatch.setattr(mx, "clear_streams", record)
    rig.start()
    assert rig.engine.stop(20)
    assert cleared == [("homebase-engine", len(rig.deliveries))]


def test_an_engine_that_never_started_stops() -> None:
    engine = Engine(lambda: pytest.fail("built"), lambda events: None, EnginePolicy)
    assert not engine.alive
    assert engine.stop(0)


def test_two_hundred_hang_ups_at_random_moments_leave_nothing(rig: Rig, ask: RequestMaker) -> None:
    rng = random.Random(3)

    def prepare(model: HashModel) -> None:
        model.ballast_floats = 100_000

    rig.prepare = prepare
    rig.start()
    rig.run(ask("warm", prompt=20, max_tokens=3, sampling=SAMPLED))
    gc.collect()
    baseline = rig.wait_memory_sample()
    ids = [f"r{i}" for i in range(200)]
    for name in ids:
        rig.engine.submit(ask(name, rng.randint(1, 120), rng.randint(1, 200), SAMPLED))
        if rng.random() < 0.7:
            time.sleep(rng.random() * 0.008)
        rig.engine.cancel(name)
    rig.wait_end(*ids)
    gc.collect()
    rest = rig.wait_memory_sample()
    assert rig.model.states_built > 10
    assert rest.active_bytes - baseline.active_bytes < 50_000
    assert {rig.outcome(name) for name in ids} <= {"cancelled", "length"}
    assert [rig.outcome(name) for name in ids].count("cancelled") > 100
    assert len(rig.run(ask("after"))["after"]) == 6


def test_idle_costs_next_to_nothing_and_memory_is_still_sampled(
    rig: Rig, cpu_seconds: Callable[[float], float]
) -> None:
    rig.start()
    rig.wait_memory_sample()
    seen = len(rig.deliveries)
    assert cpu_seconds(2.5) < 0.1
    assert 1 <= len(rig.deliveries) - seen <= 3


def test_memory_is_sampled_at_most_twice_a_second_at_work(rig: Rig, ask: RequestMaker) -> None:
    began = time.monotonic()
    rig.start()
    rig.run(ask("a", prompt=5, max_tokens=1500))
    samples = sum(isinstance(event, MemorySampled) for event in rig.events())
    assert 1 <= samples <= 2 + (time.monotonic() - began) / 0.5


def test_one_engine_after_another_works_on_new_threads(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    first = rig.run(ask("a", sampling=SAMPLED))["a"]
    assert rig.engine.stop(20)
    rig.engine = Engine(rig._build, rig._deliver, lambda: rig.policy)
    rig.start()
    assert rig.run(ask("b", ask("a").prompt_ids, sampling=SAMPLED))["b"] == first


def test_submit_from_many_threads_loses_nothing(rig: Rig, ask: RequestMaker) -> None:
    rig.start()
    requests: list[EngineRequest] = [ask(f"t{i}", 1 + i % 9, 1 + i % 5) for i in range(60)]
    threads = [
        threading.Thread(target=lambda part=part: [rig.engine.submit(r) for r in requests[part::6]])
        for part in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.wait_end(*(request.id for request in requests))
    assert all(len(rig.tokens(request.id)) == request.max_tokens for request in requests)
