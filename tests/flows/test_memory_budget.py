"""A tiny memory budget: refused with the numbers before any work, or told for good; never passed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.flows.conftest import Headless

BUDGET_GIB = 0.1
"""Some 45 MiB over nano's weights and what a step needs: for 14,000 tokens."""


@pytest.fixture
def served(headless: Callable[..., Headless]) -> Headless:
    return headless(config=f"[engine]\nmemory_budget_gib = {BUDGET_GIB}\n[policy]\nmax_in_flight = 4\n")


def ask(server: Headless, words: int, max_tokens: int | None) -> tuple[int, dict[str, Any]]:
    """Status and answer."""
    content = " ".join(f"word{number}" for number in range(words))
    body = {"model": "nano", "messages": [{"role": "user", "content": content}], "temperature": 0}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"max_tokens": max_tokens}, timeout=60)
    return response.status_code, response.json()


def test_what_never_fits_is_told_as_too_long_and_nothing_is_held(served: Headless) -> None:
    model = served.snapshot()["model"]
    limit = model["effective_context_limit_tokens"]
    assert 5_000 < limit < model["context_limit_tokens"]
    status, answer = ask(served, limit, 10)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert f"maximum context length is {limit:,} tokens" in answer["error"]["message"]
    own = f"(engine.memory_budget_gib) sets this limit; the model itself has {model['context_limit_tokens']:,}."
    assert own in answer["error"]["message"]
    assert own in ask(served, 20 * limit, 10)[1]["error"]["message"], "where the prompt is not read to its end too"
    snapshot = served.snapshot()
    assert (snapshot["admission"]["in_flight"], snapshot["memory"]["promised_bytes"]) == (0, 0)


def test_what_does_not_fit_beside_others_is_refused_with_the_numbers(served: Headless) -> None:
    limit = served.snapshot()["model"]["effective_context_limit_tokens"]
    with httpx.Client(timeout=60) as client:
        body = {"model": "nano", "messages": [{"role": "user", "content": "go"}], "max_tokens": limit - 200}
        with client.stream("POST", f"{served.url}/v1/chat/completions", json=body | {"stream": True}) as response:
            assert response.status_code == 200
            memory = served.snapshot()["memory"]
            assert 0 < memory["promised_bytes"] < memory["budget_bytes"] == int(BUDGET_GIB * 2**30)
            status, answer = ask(served, 10, 4000)
            assert (status, answer["error"]["code"]) == (429, "memory_budget_full")
            assert "engine.memory_budget_gib" in answer["error"]["message"]
    served.wait_until("its memory is free again", lambda: not served.snapshot()["memory"]["promised_bytes"])
    assert ask(served, 10, 20)[0] == 200


def test_prompts_that_grow_to_the_budget_never_pass_it(served: Headless) -> None:
    """Two at a time; each is answered, refused or too long, and what MLX holds stays within the budget."""
    statuses: list[int] = []
    for words in (50, 100, 300, 900, 6000):
        with ThreadPoolExecutor(2) as pool:
            answers = pool.map(lambda place, words=words: ask(served, words + place, 16), range(2))
            statuses += [status for status, _ in answers]
        memory = served.snapshot()["memory"]
        assert memory["active_bytes"] + memory["cache_bytes"] <= memory["budget_bytes"]
        assert memory["prefix_cache_bytes"] <= memory["prefix_cache_budget_bytes"]
    assert set(statuses) <= {200, 400, 429}
    assert statuses[:2] == [200, 200]
    assert statuses[-2:] == [400, 400]


def test_a_budget_below_the_weights_is_told_at_the_start_and_to_everybody(headless: Callable[..., Headless]) -> None:
    server = headless(config="[engine]\nmemory_budget_gib = 0.02\n", ready=False)
    server.wait_until("the log says so", lambda: "every request will be refused" in server.said, 45)
    body = {"model": "nano", "messages": [{"role": "user", "content": "word"}], "max_tokens": 5}
    refused = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "memory_too_small")
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    assert "Raise that limit" in refused.json()["error"]["message"]
    ready = httpx.get(f"{server.url}/ready", timeout=60)
    assert ready.status_code == 503
    assert "engine.memory_budget_gib" in ready.json()["reason"]
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    (listed,) = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
    assert (listed["context_length"], listed["max_model_len"]) == (None, None)
    assert server.snapshot()["model"]["effective_context_limit_tokens"] == 0


def test_an_output_left_open_leaves_room_for_a_second_request(served: Headless) -> None:
    stream = served.open_stream(max_tokens=None)
    assert ask(served, 10, 20)[0] == 200
    assert not stream.ended.is_set() or stream.error is None
