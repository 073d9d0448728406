"""Sequences that begin with what is cached get the tokens that a cold run gets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from server.engine.prefix.cache import PrefixCache
from server.engine.prefix.restored import NOTHING_KEPT
from server.engine.prefix.tree import PrefixTree
from server.events import PrefixCacheSampled
from server.policy import EnginePolicy

Text = Callable[[int, int], tuple[int, ...]]
Make = Callable[..., Any]

MODELS = ["nano", "tiny", "tiny2", "tiny_mlx_q4", "llama"]


@pytest.fixture
def check(cold: Make) -> Make:
    """A warm run, that equals a cold one and reuses at least so many tokens."""

    def run(
        warm: Any, name: str, prompt: tuple[int, ...], least: int = 0, max_tokens: int = 12, **more: Any
    ) -> list[int]:
        tokens = warm.run(prompt, max_tokens, **more)
        assert tokens == cold(name, prompt, max_tokens, more.get("stops", frozenset()))
        assert warm.looked_up().cached_tokens >= least, warm.looked_up()
        assert warm.looked_up().cached_tokens + warm.computed() == len(prompt)
        return tokens

    return run


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mtp", ["off", 2])
def test_every_kind_of_point_leads_to_the_same_tokens(desk: Make, check: Make, text: Text, name: str, mtp: Any) -> None:
    if name == "llama" and mtp == 2:
        pytest.skip("no head")
    warm = desk(name, mtp=mtp)
    head, opening = text(1, 150), text(9, 5)
    first = (*head, *text(2, 200), *opening)
    bounds = {"boundaries": (0, 150, 350)}
    reply = check(warm, name, first, least=0, **bounds)
    assert warm.looked_up().cached_tokens == 0
    assert warm.looked_up().diverged_at == 0
    # Sent again; with its reply; with the reply gone; with another one; only the head.
    check(warm, name, first, least=350, **bounds)
    check(warm, name, (*first, *reply, *text(3, 40)), least=len(first) + len(reply) - 1, max_tokens=30)
    check(warm, name, (*first[:350], *text(4, 70)), least=350)
    check(warm, name, (*first[:352], *text(5, 70)), least=350)
    check(warm, name, (*head, *text(6, 90)), least=150)
    # In the middle of a message: from the head, and the next one from where this one parted.
    check(warm, name, (*first[:290], *text(7, 120)), least=150)
    check(warm, name, (*first[:290], *text(8, 120)), least=290)


@pytest.mark.parametrize("name", ["nano", "tiny2", "llama"])
def test_a_cancelled_reply_is_kept(desk: Make, check: Make, text: Text, name: str) -> None:
    warm, prompt = desk(name), text(1, 300)
    request_id = warm.add(prompt, 40)
    while len(warm.tokens(request_id)) < 15:
        warm.step()
    warm.cancel(request_id)
    reply = warm.tokens(request_id)
    check(warm, name, (*prompt, *reply, *text(2, 30)), least=len(prompt) + len(reply) - 1)
    check(warm, name, (*prompt, *reply[:3], *text(3, 30)), least=len(prompt) - 1)


@pytest.mark.parametrize("name", ["nano", "tiny2", "llama"])
def test_a_request_aborted_in_prefill_and_sent_again_goes_on(desk: Make, check: Make, text: Text, name: str) -> None:
    warm, prompt = desk(name), text(1, 900)
    request_id = warm.add(prompt)
    while warm.computed(request_id) < 400:
        warm.step()
    done = warm.computed(request_id)
    warm.cancel(request_id)
    check(warm, name, prompt, least=done)


@pytest.mark.parametrize("name", ["nano", "tiny", "llama"])
def test_a_stop_among_accepted_drafts_leaves_a_point_right_after_it(
    desk: Make, check: Make, cold: Make, text: Text, name: str
) -> None:
    prompt = text(1, 200)
    mtp = "off" if name == "llama" else 4
    plain = cold(name, prompt, 24)
    stop = next(token for place, token in enumerate(plain) if place > 8 and token not in plain[:place])
    warm = desk(name, mtp=mtp)
    reply = check(warm, name, prompt, least=0, max_tokens=24, stops=frozenset({stop}))
    assert reply == plain[: plain.index(stop) + 1]
    check(warm, name, (*prompt, *reply, *text(2, 20)), least=len(prompt) + len(reply) - 1)


@pytest.mark.parametrize("name", ["nano", "llama"])
def test_parent_beside_child(desk: Make, cold: Make, text: Text, name: str) -> None:
    warm, head = desk(name), text(1, 300)
    prompts = [(*head, *text(seed, 60)) for seed in (2, 3, 4)]
    bounds = {"boundaries": (0, 300)}
    alone = [cold(name, prompt, 20) for prompt in prompts]
    warm.run(prompts[0], 20, **bounds)
    ids = [warm.add(prompt, 20, **bounds) for prompt in prompts]
    warm.finish()
    assert [warm.tokens(each) for each in ids] == alone
    assert [warm.looked_up(each).cached_tokens >= 300 for each in ids] == [True] * 3


def test_ten_sessions_share_their_head(desk: Make, text: Text) -> None:
    warm, head = desk(), text(1, 2000)
    sizes: list[int] = []
    for seed in range(10):
        warm.run((*head, *text(2 + seed, 100)), 5, boundaries=(0, 2000))
        sizes.append(warm.cache.nbytes)
        assert warm.computed() <= (2100 if seed == 0 else 100)
    tails = [after - before for before, after in pairwise(sizes)]
    rows = sum(node.rows.nbytes for tree in warm.cache._all for node in tree.nodes())
    point = max(node.point.nbytes for tree in warm.cache._all for node in tree.nodes() if node.point)
    assert max(tails) == min(tails)
    assert tails[0] == pytest.approx(rows / (2000 + 10 * 104) * 104 + 2 * point, rel=0.01)


def test_bytes_of_a_token_are_those_of_its_shapes(desk: Make, text: Text) -> None:
    warm = desk(mtp=2)
    warm.run(text(1, 1000), 5)
    rows = sum(node.rows.nbytes for tree in warm.cache._all for node in tree.nodes())
    layers = 3 + 1  # of the model, and the head's
    assert rows == pytest.approx(1004 * layers * (2 * 2 * 32 + 32) * 4, rel=0.002)


@pytest.mark.parametrize("mtp", ["off", 3])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.7])
def test_a_cache_that_is_always_full_changes_no_token(
    desk: Make, check: Make, text: Text, mtp: Any, share: float
) -> None:
    whole = desk(mtp=mtp)
    prompts = [(*text(1, 100), *text(seed, 80), *text(99, 4)) for seed in (2, 3, 4, 3, 2)]
    for prompt in prompts:
        whole.run(prompt)
    warm = desk(mtp=mtp, prefix_cache_gib=share * whole.cache.nbytes / 2**30)
    for prompt in prompts:
        check(warm, "nano", prompt, least=0, boundaries=(0, 100, 180))
        assert warm.cache.nbytes <= warm.cache.budget_bytes


def test_points_are_taken_without_drafting_for_those_that_do_not_draft(desk: Make, check: Make, text: Text) -> None:
    warm, prompt = desk(mtp="off"), text(1, 200)
    warm.run(prompt)
    warm.policy = EnginePolicy(prefill_chunk_tokens=100, prefix_cache_gib=1.0, mtp=2)
    check(warm, "nano", prompt, least=0)
    assert warm.looked_up().cached_tokens == 0  # the head has not read it
    warm.policy = EnginePolicy(prefill_chunk_tokens=100, prefix_cache_gib=1.0, mtp="off")
    check(warm, "nano", (*prompt, *text(2, 50)), least=199)


def test_drafting_goes_on_after_a_hit(desk: Make, text: Text) -> None:
    warm, prompt = desk(mtp=3), text(1, 300)
    warm.run(prompt, 40)
    accepted = [e.accepted_tokens for e in warm.events if getattr(e, "drafted_tokens", 0)]
    warm.events.clear()
    warm.run(prompt, 40)
    assert [e.accepted_tokens for e in warm.events if getattr(e, "drafted_tokens", 0)] == accepted
    assert sum(accepted) > 3


@pytest.mark.parametrize("where", ["find", "insert"])
def test_a_fault_of_the_cache_costs_no_stream_its_work(
    desk: Make,
    check: Make,
    cold: Make,
    text: Text,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    warm, prompt = desk(), text(1, 300)
    warm.run(prompt)
    running = warm.add(text(2, 300), 30)
    warm.step()

    def fail(*args: Any) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(PrefixTree, where, fail)
        check(warm, "nano", prompt, least=0)
    assert "the prefix cache failed" in caplog.text
    assert warm.tokens(running) == cold("nano", text(2, 300), 30)
    warm.run(prompt)
    check(warm, "nano", prompt, least=299)


def test_a_state_that_cannot_be_built_is_run_cold(
    desk: Make, check: Make, cold: Make, text: Text, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warm, prompt = desk(), text(1, 300)
    warm.run(prompt)
    (node,) = [each for each in warm.cache._all[0].nodes() if each.end == 299]
    node.point.fixed.arrays.popitem()
    check(warm, "nano", prompt, least=0)
    assert warm.looked_up().detail == "nothing: the prefix cache failed"
    assert "another model" in caplog.text


def test_the_policy_is_followed_while_it_runs(desk: Make, text: Text) -> None:
    warm, prompt = desk(), text(1, 300)
    warm.run(prompt)
    held = warm.cache.nbytes
    assert held > 0
    warm.policy = EnginePolicy(prefix_cache_gib=0.0)
    warm.run(text(2, 50))
    assert warm.cache.nbytes == 0
    sampled = [event for event in warm.events if isinstance(event, PrefixCacheSampled)]
    assert sampled[-1] == PrefixCacheSampled(0, 0, 0)
    warm.policy = EnginePolicy(prefix_cache_gib=1.0)
    warm.run(prompt)
    assert warm.cache.nbytes == pytest.approx(held, rel=0.01)


def test_memory_is_given_back_when_asked_for(desk: Make, text: Text) -> None:
    warm = desk()
    for seed in range(4):
        warm.run(text(seed, 200))
    before = warm.cache.nbytes
    assert warm.cache.give_way(before // 2) >= before // 2
    warm.cache.give_way(2 * before)
    assert warm.cache.nbytes == 0


def test_what_streams_do_not_use_yet_is_the_caches(desk: Make, text: Text) -> None:
    """Outputs that are left open are promised all the memory there is; the cache is emptied by none of that."""
    warm, head = desk(memory_budget_gib=0.2), text(1, 1000)
    warm.run((*head, *text(2, 50)), boundaries=(0, 1000))
    for seed in (3, 4):
        request_id = warm.add((*head, *text(seed, 50)), 20_000)
        for _ in range(4):
            warm.step()
        assert warm.looked_up(request_id).cached_tokens >= 1000


def test_the_cache_gives_way_to_prompts_as_they_come(desk: Make, text: Text) -> None:
    warm = desk(memory_budget_gib=0.1)
    for seed in range(6):
        warm.run(text(seed, 1000))
    plan = warm.facts.plan_memory(0.1)
    before = warm.cache.nbytes
    prompt = text(9, 10_000)
    request_id = warm.add(prompt, 3)
    warm.step()
    left = plan.room_bytes - plan.stream.at(len(prompt))
    assert warm.cache.budget_bytes == left < before
    assert warm.cache.nbytes <= left
    warm.cancel(request_id)
    warm.run(text(10, 10), 1)
    assert warm.cache.budget_bytes > left


class Plain:
    """A model whose states know nothing of being stored."""

    mtp = None

    def build_state(self) -> object:
        return object()


def test_a_model_whose_states_cannot_be_taken_apart_is_served_without() -> None:
    cache = PrefixCache(Plain())  # type: ignore[arg-type]
    cache.follow(EnginePolicy(prefix_cache_gib=1.0), 10**9)
    assert cache.begin("a", (1, 2, 3), (), False) == NOTHING_KEPT
