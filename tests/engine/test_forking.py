"""Prompts that begin alike: read once, and each stream's text is what it gets alone, whatever becomes of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.request import EngineRequest, Sampling
from server.engine.sharing import LEAST_SHARED_TOKENS
from server.events import PrefillAdvanced, PromptShared
from server.policy import EnginePolicy

if TYPE_CHECKING:
    from tests.engine.conftest import HashState, RequestMaker, Table, TableMaker

GREEDY = Sampling(temperature=0)
SHARED = tuple((5 + 11 * place) % 61 for place in range(200))


def begin_alike(common: int, own: int, salt: int) -> tuple[int, ...]:
    """A prompt with the first `common` of the shared tokens and then others of its own."""
    return (*SHARED[:common], *((SHARED[common] + 1 + salt + 17 * place) % 61 for place in range(own)))


def chunks(table: Table, request_id: str) -> list[PrefillAdvanced]:
    return [e for e in table.events if isinstance(e, PrefillAdvanced) and e.request_id == request_id]


def computed(table: Table, request_id: str) -> int:
    return sum(event.chunk_tokens for event in chunks(table, request_id))


def told(table: Table, request_id: str) -> list[tuple[int | None, str]]:
    shared = [e for e in table.events if isinstance(e, PromptShared) and e.request_id == request_id]
    return [(event.diverged_at, event.detail) for event in shared]


def alone(table: TableMaker, *requests: EngineRequest) -> dict[str, list[int]]:
    return {request.id: table("off").run(request)[request.id] for request in requests}


@pytest.mark.parametrize("mtp", ["off", "auto", 1, 3])
@pytest.mark.parametrize("chunk", [8, 50, 2000])
def test_what_two_prompts_begin_with_is_computed_once(
    table: TableMaker, ask: RequestMaker, mtp: object, chunk: int
) -> None:
    a, b = ask("a", begin_alike(130, 40, 0), 20), ask("b", begin_alike(130, 20, 1), 20)
    both = table(mtp, chunk=chunk)
    assert both.run(a, b) == alone(table, a, b)
    assert (computed(both, "a"), computed(both, "b")) == (170, 20)
    forked = chunks(both, "b")[0]
    assert forked == PrefillAdvanced("b", 130, 0, 0.0, cached_tokens=130)
    assert not any(event.cached_tokens for event in chunks(both, "a"))
    assert chunks(both, "b")[-1].done_tokens == 150


@pytest.mark.parametrize("mtp", ["off", 2])
def test_of_equal_prompts_the_second_runs_its_last_token(table: TableMaker, ask: RequestMaker, mtp: object) -> None:
    a, b = ask("a", SHARED, 20), ask("b", SHARED, 20, Sampling(temperature=0.9, seed=3))
    both = table(mtp)
    assert both.run(a, b) == alone(table, a, b)
    assert (computed(both, "a"), computed(both, "b")) == (200, 1)
    assert {event.cached_tokens for event in chunks(both, "b")} == {199}
    assert told(both, "a") == []
    assert told(both, "b") == [
        (None, "0 of 200 tokens so far: another stream computes the next 199"),
        (None, "199 of 200 tokens: another stream computed them"),
    ]


@pytest.mark.parametrize("mtp", ["off", 2])
def test_a_prompt_that_is_the_start_of_another_and_one_that_goes_on(
    table: TableMaker, ask: RequestMaker, mtp: object
) -> None:
    long, short, longer = ask("long", SHARED, 9), ask("short", SHARED[:100], 9), ask("longer", (*SHARED, 3, 4), 9)
    three = table(mtp)
    assert three.run(long, short, longer) == alone(table, long, short, longer)
    assert [computed(three, name) for name in ("long", "short", "longer")] == [200, 1, 2 + 1]


def test_few_tokens_in_common_are_not_waited_for(table: TableMaker, ask: RequestMaker) -> None:
    few = LEAST_SHARED_TOKENS - 1
    both = table()
    both.run(ask("a", begin_alike(few, 40, 0), 3), ask("b", begin_alike(few, 40, 1), 3))
    assert (computed(both, "a"), computed(both, "b")) == (few + 40, few + 40)


def test_one_that_is_past_the_branch_is_not_waited_for(table: TableMaker, ask: RequestMaker) -> None:
    late = table(chunk=50)
    late.add(ask("a", SHARED, 3))
    for _ in range(3):
        late.step()
    late.run(ask("b", begin_alike(140, 10, 1), 3), ask("c", begin_alike(150, 10, 1), 3))
    assert [computed(late, name) for name in "abc"] == [200, 150, 10]


def test_each_waits_for_the_one_that_saves_it_most(table: TableMaker, ask: RequestMaker) -> None:
    trunk = begin_alike(100, 100, 7)
    requests = [ask("a", SHARED, 9), ask("b", trunk, 9), ask("c", (*trunk[:170], 1, 2, 3, 4), 9)]
    line = table(2)
    assert line.run(*requests) == alone(table, *requests)
    assert [computed(line, name) for name in "abc"] == [200, 100, 4]


@pytest.mark.parametrize("mtp", ["off", 2])
@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_a_cancelled_leader_hands_on_what_it_has_read(
    table: TableMaker, ask: RequestMaker, mtp: object, steps: int
) -> None:
    requests = [ask(name, begin_alike(150, 20, salt), 9) for salt, name in enumerate("abc")]
    handing = table(mtp, chunk=16)
    for request in requests:
        handing.add(request)
    for _ in range(steps):
        handing.step()
    handing.events.extend(handing.runner.cancel("a"))
    handing.finish()
    assert {name: handing.tokens(name) for name in "bc"} == alone(table, *requests[1:])
    assert computed(handing, "b") == 170 - min(150, 16 * steps)
    assert computed(handing, "c") == 20
    read = min(150, 16 * steps)
    words = "computed them before it ended" if read < 150 else "computed them, and the two part at token 150"
    assert (150, f"{read} of 170 tokens: another stream {words}") in told(handing, "b") or not read


def test_cancelling_all_hands_nothing_on(table: TableMaker, ask: RequestMaker) -> None:
    handing = table()
    for salt, name in enumerate("ab"):
        handing.add(ask(name, begin_alike(150, 20, salt), 9))
    handing.step()
    handing.events.extend(handing.runner.cancel_all())
    assert handing.runner.idle
    assert chunks(handing, "b") == []


@pytest.mark.parametrize("after", [1, 60, 149, 160])
def test_a_leader_that_fails_keeps_nobody_waiting(table: TableMaker, ask: RequestMaker, after: int) -> None:
    a, b = ask("a", begin_alike(150, 20, 0), 9), ask("b", begin_alike(150, 20, 1), 9)
    failing, failed = table(2, chunk=16), list[str]()

    def fail_once(ids: list[int]) -> None:
        if ids[:after] == [*a.prompt_ids[:after]] and not failed:
            failed.append("a")
            raise ValueError("bad shape")

    failing.model.before = fail_once
    failing.run(a, b)
    assert failing.end("a").outcome == "failed"
    assert failing.tokens("b") == alone(table, b)["b"]
    assert computed(failing, "b") == (20 if after > 150 else 170)
    assert told(failing, "b")[-1][1].startswith("150 of 170" if after > 150 else "")
    assert bool(told(failing, "b")[-1][1]) == (after > 150), "nobody computes them any more"


def test_a_state_that_cannot_be_forked_is_done_without(
    table: TableMaker, ask: RequestMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = ask("a", begin_alike(150, 20, 0), 9), ask("b", begin_alike(150, 20, 1), 9)
    stubborn = table(2)

    def refuse(state: HashState) -> HashState:
        raise MemoryError

    monkeypatch.setattr(type(stubborn.model.build_state()), "fork", refuse)
    assert stubborn.run(a, b) == alone(table, a, b)
    assert computed(stubborn, "b") == 170
    assert "could not be forked" in caplog.text


def test_a_leader_whose_head_has_missed_rows_is_not_followed(table: TableMaker, ask: RequestMaker) -> None:
    a, b = ask("a", begin_alike(150, 20, 0), 9), ask("b", begin_alike(150, 20, 1), 9)
    edited = table("off")
    edited.add(a)
    edited.step()
    edited.policy = EnginePolicy(prefill_chunk_tokens=8, mtp=2)
    assert edited.run(b) == alone(table, b)
    assert (edited.states("a")[-1][:3], edited.states("b")) == ("off", ["on"])
    assert computed(edited, "b") == 170


def test_a_parent_waits_for_no_longer_than_its_own_prompt_takes(table: TableMaker, ask: RequestMaker) -> None:
    child, other = (
        EngineRequest(name, prompt, 3, GREEDY, frozenset(), priority=1)
        for name, prompt in (("child", begin_alike(150, 50, 0)), ("other", ask("other", 300).prompt_ids))
    )
    parent = EngineRequest("parent", begin_alike(150, 20, 1), 3, GREEDY, frozenset())
    busy = table(chunk=10)
    busy.add(other)
    busy.add(child)
    for _ in range(4):
        busy.step()
    busy.add(parent)
    for _ in range(15):
        busy.step()
    assert len(busy.tokens("parent")) >= 1


Script = list[tuple[str, int, int, int]]
SCRIPTS: st.SearchStrategy[Script] = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "step", "step", "cancel", "edit"]),
        st.sampled_from([64, 65, 100, 130, 199]),
        st.integers(0, 30),
        st.integers(0, 4),
    ),
    min_size=4,
    max_size=25,
)


@given(script=SCRIPTS, wrong_one_in=st.integers(0, 3), mtp=st.sampled_from(["off", "auto", 2]))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_arrivals_and_cancels_leaves_each_its_text(
    table: TableMaker, ask: RequestMaker, script: Script, wrong_one_in: int, mtp: object
) -> None:
    busy = table(mtp, wrong_one_in)
    asked: dict[str, EngineRequest] = {}
    cancelled: set[str] = set()
    for action, common, own, pick in script:
        if action == "arrive":
            name = f"r{len(asked)}"
            sampling = GREEDY if own % 2 else Sampling(temperature=1.1, frequency_penalty=0.7, seed=pick)
            prompt = begin_alike(common, own + 1, pick)
            asked[name] = EngineRequest(name, prompt, 1 + own % 9, sampling, frozenset(), priority=pick % 2)
            busy.add(asked[name])
        elif action == "step" and not busy.runner.idle:
            busy.step()
        elif action == "cancel" and asked:
            name = f"r{pick % len(asked)}"
            ended = busy.runner.cancel(name)
            busy.events.extend(ended)
            cancelled |= {name} if ended else set()
        elif action == "edit":
            setting = pick if pick else "off"
            busy.policy = EnginePolicy(prefill_chunk_tokens=1 + own, mtp=setting)  # type: ignore[arg-type]
    busy.finish()
    for name, request in asked.items():
        plain = table("off", chunk=4000).run(request)[name]
        got = busy.tokens(name)
        assert got == (plain[: len(got)] if name in cancelled else plain)
        done = [event.done_tokens for event in chunks(busy, name)]
        assert done == sorted(done)
        if name not in cancelled:
            last = chunks(busy, name)[-1]
            cached = max(event.cached_tokens for event in chunks(busy, name))
            assert last.done_tokens == len(request.prompt_ids) == cached + computed(busy, name)
