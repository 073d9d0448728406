"""Drafting in the engine: the text is that of plain decoding, whatever is drafted, beside whomever, whenever."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.request import EngineRequest, Sampling
from server.events import StepCost, StepDone
from server.policy import EnginePolicy

if TYPE_CHECKING:
    from tests.engine.conftest import HashHead, HashState, MtpModelMaker, RequestMaker, Rig, Table, TableMaker

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.8, top_p=0.95, top_k=20, min_p=0.01, seed=42)
SETTINGS: list[object] = ["auto", 1, 2, 3, 4]


def run(table: Table, *requests: EngineRequest) -> dict[str, list[int]]:
    return table.run(*requests)


def head_of(table: Table) -> HashHead:
    assert table.model.mtp is not None
    return table.model.mtp


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mtp", SETTINGS)
@pytest.mark.parametrize("wrong_one_in", [0, 1, 2, 5])
def test_text_with_drafting_is_the_text_without(
    table: TableMaker, ask: RequestMaker, mtp: object, wrong_one_in: int, sampling: Sampling
) -> None:
    requests = [ask(f"p{prompt}", prompt, 24, sampling) for prompt in (1, 7, 8, 33)]
    plain = {request.id: PLAIN.get((request.id, sampling)) or run_plainly(table, request) for request in requests}
    alone = {request.id: run(table(mtp, wrong_one_in), request)[request.id] for request in requests}
    assert alone == plain
    assert run(table(mtp, wrong_one_in), *requests) == plain


PLAIN: dict[tuple[str, Sampling], list[int]] = {}
"""What plain decoding gave, for the test above alone: it asks for the same again and again."""


def run_plainly(table: TableMaker, request: EngineRequest) -> list[int]:
    plain = run(table("off"), request)[request.id]
    PLAIN[request.id, request.sampling] = plain
    return plain


def test_a_perfect_head_brings_depth_plus_one_tokens_per_step(table: TableMaker, ask: RequestMaker) -> None:
    perfect = table(3, wrong_one_in=0)
    run(perfect, ask("a", 5, 41))
    assert [len(e.token_ids) for e in perfect.emissions("a")] == [1, *[4] * 10]
    assert {(e.drafted_tokens, e.accepted_tokens) for e in perfect.emissions("a")[1:]} == {(3, 3)}


def test_a_hopeless_head_costs_no_token(table: TableMaker, ask: RequestMaker) -> None:
    hopeless = table(2, wrong_one_in=1)
    run(hopeless, ask("a", 5, 12))
    assert [(len(e.token_ids), e.accepted_tokens) for e in hopeless.emissions("a")] == [(1, 0)] * 12


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_is_never_exceeded(table: TableMaker, ask: RequestMaker, max_tokens: int) -> None:
    perfect = table(4, wrong_one_in=0)
    assert len(run(perfect, ask("a", 5, max_tokens))["a"]) == max_tokens
    assert perfect.end("a").outcome == "length"


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_stop_id_inside_an_accepted_run_ends_it_there(table: TableMaker, ask: RequestMaker, depth: int) -> None:
    plain = run(table("off"), ask("a", 5, 30))["a"]
    for index in range(12):
        stop = plain[index]
        stopped = table(depth, wrong_one_in=0)
        got = run(stopped, ask("a", 5, 30, stop_ids=frozenset({stop})))["a"]
        assert got == plain[: plain.index(stop) + 1]
        assert stopped.end("a").outcome == "stop"


def test_a_step_is_one_forward_of_everyone(table: TableMaker, ask: RequestMaker) -> None:
    both = table(2, wrong_one_in=0, chunk=40)
    both.add(ask("a", 3, 30))
    both.step()
    both.add(ask("b", 100, 5))
    both.step()
    assert both.model.passes == [[3], [40, 3]]  # b's chunk, and a's newest token with two drafts
    both.step()
    assert head_of(both).calls == [[3], [1], [40, 3], [1]]  # a's prompt, a deeper row; b's chunk beside a's three


def test_sequences_are_drafted_together_at_depths_of_their_own(table: TableMaker, ask: RequestMaker) -> None:
    ragged = table(4, wrong_one_in=0)
    for name, tokens in (("a", 2), ("b", 3), ("c", 20)):
        ragged.add(ask(name, 4, tokens))
    for _ in range(3):
        ragged.step()
    before = len(head_of(ragged).calls)
    ragged.add(ask("d", 4, 3))
    ragged.finish()
    assert ragged.model.passes[3][1:] == [5]
    assert before < len(head_of(ragged).calls)
    assert [len(ragged.tokens(name)) for name in "abcd"] == [2, 3, 20, 3]


def test_the_prompt_is_read_by_the_head_chunk_by_chunk(table: TableMaker, ask: RequestMaker) -> None:
    primed = table(1, wrong_one_in=0, chunk=40)
    run(primed, ask("a", 100, 3))
    assert head_of(primed).calls == [[40], [40], [20]]


def test_few_rows_wait_for_company(table: TableMaker, ask: RequestMaker) -> None:
    primed = table(1, wrong_one_in=0, chunk=10)
    run(primed, ask("a", 70, 3))
    assert head_of(primed).calls == [[40], [30]]


def test_a_head_keeps_no_row_of_a_rejected_draft(table: TableMaker, ask: RequestMaker) -> None:
    lengths = table(3, wrong_one_in=2)
    lengths.add(ask("a", 5, 60))
    while not lengths.runner.idle:
        lengths.step()
        for sequence in lengths.runner._sequences.values():
            trail = sequence.drafter.trail
            assert trail is not None
            assert trail.rows == sequence.state.offset == 5 + sequence.emitted_tokens - 1
            assert trail.waiting_rows >= 1


@pytest.mark.parametrize("mtp", ["auto", 2])
def test_off_in_the_middle_and_on_again(table: TableMaker, ask: RequestMaker, mtp: object) -> None:
    plain = run(table("off"), ask("a", 5, 60))["a"]
    edited = table(mtp)
    edited.add(ask("a", 5, 60))
    for setting in (mtp, "off", mtp):
        edited.policy = EnginePolicy(prefill_chunk_tokens=8, mtp=setting)  # type: ignore[arg-type]
        for _ in range(5):
            edited.step()
    edited.finish()
    assert edited.tokens("a") == plain
    assert edited.states("a") == [
        "on",
        "off: [engine] mtp is off",
        "off: drafting was off for a part of this stream, which the head has not read",
    ]


def test_why_it_is_off_is_told(table: TableMaker, ask: RequestMaker) -> None:
    headless, off = table("auto", wrong_one_in=None), table("off")
    run(headless, ask("a", 5, 5))
    run(off, ask("a", 5, 5))
    assert headless.states("a") == ["off: the checkpoint has no multi-token-prediction head"]
    assert off.states("a") == ["off: [engine] mtp is off"]


def fail_on(first_token: int, after: int) -> Callable[[list[int]], None]:
    def before(ids: list[int]) -> None:
        if ids[0] == first_token and len(ids) >= after:
            raise ValueError("bad shape")

    return before


@pytest.mark.parametrize("after", [1, 6, 12, 30])
@pytest.mark.parametrize("mtp", ["off", 1, 3])
def test_a_fault_in_the_packed_pass_ends_only_the_one_that_has_it(
    table: TableMaker, ask: RequestMaker, mtp: object, after: int
) -> None:
    good = [ask("b", 30, 40), ask("c", 3, 40, SAMPLED)]
    plain = [run(table("off"), request)[request.id] for request in good]
    mixed = table(mtp)
    mixed.model.before = fail_on(60, after)
    run(mixed, good[0], ask("bad", (60,) * 10, 40), good[1])
    assert mixed.end("bad").error == "The model failed on this sequence: ValueError: bad shape."
    assert [mixed.tokens("b"), mixed.tokens("c")] == plain


def compute_elsewhere() -> mx.array:
    """An array that this thread cannot evaluate: another one began it, on a stream of its own."""
    begun: list[mx.array] = []

    def begin() -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            begun.append(mx.zeros((3,), mx.uint32) + 1)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    return begun[0]


def spoil_array(state: HashState) -> None:
    state.history = compute_elsewhere()


def refuse_to_return(state: HashState) -> None:
    raise ValueError("no way back")


@pytest.mark.parametrize(("fault", "said"), [(spoil_array, "Stream"), (refuse_to_return, "no way back")])
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_state_that_cannot_be_cut_back_ends_its_sequence_alone(
    table: TableMaker,
    ask: RequestMaker,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[HashState], None],
    said: str,
    is_alone: bool,
) -> None:
    good, bad = [ask("b", 30, 40), ask("c", 3, 40, SAMPLED)], ask("bad", (60,) * 10, 40)
    plain = [table("off").run(request)[request.id] for request in good]
    mixed = table(2, wrong_one_in=2)
    state_type = type(mixed.model.build_state())
    roll_back = state_type.rollback

    def stumble(state: HashState, checkpoint: object, keep_tokens: int = 0) -> None:
        roll_back(state, checkpoint, keep_tokens)
        if keep_tokens and state.ids[0] == 60 and len(state.ids) > 20:
            fault(state)

    monkeypatch.setattr(state_type, "rollback", stumble)
    mixed.run(*(() if is_alone else good), bad)
    error = mixed.end("bad").error
    assert error is not None
    assert said in error
    assert len(mixed.tokens("bad")) >= 10
    assert mixed.runner.idle
    if not is_alone:
        assert [mixed.tokens("b"), mixed.tokens("c")] == plain


def test_a_fault_of_the_head_ends_drafting_and_no_sequence(
    table: TableMaker, ask: RequestMaker, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = ask("b", 30, 40), ask("bad", (60,) * 10, 40)
    plain = [run(table("off"), request)[request.id] for request in (good, bad)]
    mixed = table(2)
    head_of(mixed).before = fail_on(bad.prompt_ids[1], 14)
    run(mixed, good, bad)
    assert [mixed.tokens("b"), mixed.tokens("bad")] == plain
    assert mixed.states("bad") == ["on", "off: the draft head failed: ValueError: bad shape"]
    assert mixed.states("b") == ["on"]
    assert max(e.drafted_tokens for e in mixed.emissions("b")[-5:]) == 2
    assert "drafting for sequence bad failed" in caplog.text


@pytest.mark.parametrize("mtp", ["off", 1, 4])
def test_unusable_scores_end_a_sequence_after_the_same_tokens(
    table: TableMaker, ask: RequestMaker, mtp: object
) -> None:
    spoiled = table(mtp, wrong_one_in=0)
    spoiled.model.spoil = lambda ids: float("nan") if ids[0] == 60 and len(ids) > 9 else None
    run(spoiled, ask("bad", (60,) * 5, 40), ask("good", 5, 40))
    error = spoiled.end("bad").error
    assert error is not None
    assert "not numbers" in error
    assert len(spoiled.tokens("bad")) == 5
    assert len(spoiled.tokens("good")) == 40


def test_steps_are_measured_and_add_up(table: TableMaker, ask: RequestMaker) -> None:
    counted = table(2)
    run(counted, ask("a", 30, 19), ask("b", 11, 14))
    done = [event for event in counted.events if isinstance(event, StepDone)]
    assert sum(event.prefill_tokens for event in done) == 41
    assert sum(event.decode_tokens for event in done) == 33
    assert sum(event.decoding for event in done) == len(counted.emissions("a")) + len(counted.emissions("b"))
    assert len(done) - 4 < counted.runner.cost.steps <= len(done)


def test_the_depth_follows_what_pays(table: TableMaker, ask: RequestMaker) -> None:
    right, wrong = table("auto", wrong_one_in=0), table("auto", wrong_one_in=1)
    for each in (right, wrong):
        # The forward is nearly all of a step, whatever its rows: a right head pays, and a wrong one only costs.
        each.runner._costs.observe = lambda load, seconds: None
        each.runner._costs.cost = StepCost(step_s=0.01, row_s=0.0005, draft_call_s=0.001, steps=100, error_ratio=0.05)
        each.runner._decode_steps[1] = 100
        run(each, ask("a", 5, 400))
    assert [e.drafted_tokens for e in right.emissions("a")[10:-2]].count(4) > 60
    assert right.states("a") == ["on"]
    drafted = [e.drafted_tokens for e in wrong.emissions("a")]
    assert sum(drafted) < 60
    assert drafted[-1] == 0
    assert wrong.states("a")[1].startswith("off: drafting would bring")


def test_text_is_the_same_while_the_engine_runs_on_a_thread(
    rig: Rig, ask: RequestMaker, mtp_model: MtpModelMaker
) -> None:
    rng = random.Random(8)
    requests = [ask(f"r{i}", rng.randint(1, 40), rng.randint(1, 50), rng.choice([GREEDY, SAMPLED])) for i in range(10)]
    rig.model_maker = lambda: mtp_model(3)
    rig.policy = EnginePolicy(prefill_chunk_tokens=8, mtp="off")
    rig.start()
    plain = {request.id: rig.run(request)[request.id] for request in requests}
    rig.policy = EnginePolicy(prefill_chunk_tokens=8)
    again = rig.run(*(ask(f"{r.id}+", r.prompt_ids, r.max_tokens, r.sampling) for r in requests))
    assert {name[:-1]: tokens for name, tokens in again.items()} == plain
    rig.wait(lambda: any(isinstance(event, StepCost) and event.steps for event in rig.events()))


Script = list[tuple[str, int, int, int]]
ACTIONS: st.SearchStrategy[Script] = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "step", "step", "step", "cancel", "edit"]),
        st.integers(0, 40),
        st.integers(1, 30),
        st.integers(0, 4),
    ),
    min_size=4,
    max_size=30,
)


@given(script=ACTIONS, wrong_one_in=st.integers(0, 4), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_arrivals_chunks_accepts_and_cancels_leaves_each_its_text(
    table: TableMaker, ask: RequestMaker, script: Script, wrong_one_in: int, seed: int
) -> None:
    busy = table(2, wrong_one_in)
    asked: dict[str, EngineRequest] = {}
    cancelled: set[str] = set()
    for action, size, tokens, pick in script:
        if action == "arrive":
            name = f"r{len(asked)}"
            sampling = GREEDY if (size + seed) % 2 else Sampling(temperature=1.1, top_p=0.9, seed=seed)
            asked[name] = ask(name, size + 1, tokens, sampling)
            busy.add(asked[name])
        elif action == "step" and not busy.runner.idle:
            busy.step()
        elif action == "cancel" and asked:
            name = f"r{pick % len(asked)}"
            ended = busy.runner.cancel(name)
            busy.events.extend(ended)
            cancelled |= {name} if ended else set()
        elif action == "edit":
            depth = pick or "auto"
            busy.policy = EnginePolicy(prefill_chunk_tokens=1 + size, mtp=depth)  # type: ignore[arg-type]
    busy.finish()
    for name, request in asked.items():
        plain = run(table("off"), request)[name]
        got = busy.tokens(name)
        assert got == (plain[: len(got)] if name in cancelled else plain)
