"""Prometheus in front of a real server: counts add up to what clients asked for and were told."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from tests.flows.conftest import Headless

Told = dict[tuple[str, ...], float]
RISING = ("_total", "_bucket", "_count", "_sum")


def scrape(server: Headless) -> Told:
    """Value by name and labels, these in the order of their names and without the model's."""
    text = httpx.get(f"{server.url}/metrics", timeout=5).text
    return {
        (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ask(server: Headless, content: str, max_tokens: int) -> tuple[int, dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": 0}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    return response.status_code, response.json()


@contextmanager
def hang_up_midway(server: Headless) -> Generator[None]:
    """A client of a stream that decodes, and who closes the connection when this is left."""
    body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 20_000, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        pieces = (line for line in response.iter_lines() if line.startswith("data: ") and '"content":"' in line)
        assert [next(pieces) for _ in range(5)]
        yield


def check_answers(told: Told, usages: list[dict[str, Any]]) -> None:
    """The counts of whole answers are the sums of what their clients were told."""
    prompt, generated = (sum(usage[f"{part}_tokens"] for usage in usages) for part in ("prompt", "completion"))
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert told["vllm:prompt_tokens_total",] == told["vllm:request_prompt_tokens_sum",] == prompt
    assert told["vllm:generation_tokens_total",] == told["vllm:request_generation_tokens_sum",] == generated
    assert told["homebase_prompt_tokens_cached_total",] == told["vllm:prefix_cache_hits_total",] == cached > 0
    assert told["vllm:prefix_cache_queries_total",] == prompt
    for name in ("time_to_first_token", "e2e_request_latency", "request_prefill_time", "request_decode_time"):
        assert told[f"vllm:{name}_seconds_count",] == len(usages)
    ends = told["vllm:request_success_total", "stop"] + told["vllm:request_success_total", "length"]
    assert ends == len(usages)


def check_drafts(told: Told) -> None:
    """Drafts by place add up, and every token but the first ones came by an accepted draft or as a step's own."""
    accepted = told["vllm:spec_decode_num_accepted_tokens_total",]
    places = [
        value for (name, *_), value in told.items() if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    ]
    assert 0 < accepted == sum(places) <= told["vllm:spec_decode_num_draft_tokens_total",]
    assert places == sorted(places, reverse=True)
    emissions = told["vllm:inter_token_latency_seconds_count",]
    firsts = told["vllm:time_to_first_token_seconds_count",]
    # What an answer's length cuts off was accepted and never handed out.
    assert 0 <= firsts + emissions + accepted - told["vllm:generation_tokens_total",] <= 2 * firsts


def test_counts_add_up_to_what_clients_were_told(headless: Callable[..., Headless]) -> None:
    server = headless(config="[engine]\nmtp = 2\n")
    idle = scrape(server)
    assert idle["homebase_requests_in_flight",] == idle["vllm:request_success_total", "length"] == 0
    assert idle["homebase_mlx_active_bytes",] > 0
    assert idle["homebase_build_info", server.snapshot()["version"]] == 1

    answers = [ask(server, "Write a Python class. " * 20, tokens)[1]["usage"] for tokens in (24, 24, 1)]
    answered = scrape(server)
    check_answers(answered, answers)
    check_drafts(answered)
    assert answered["homebase_step_seconds_count", "prefill"] >= 3
    assert answered["homebase_step_seconds_count", "decode"] > 0

    with hang_up_midway(server), hang_up_midway(server):
        running = scrape(server)
        assert running["vllm:num_requests_running",] == running["homebase_requests_in_flight",] == 2
        assert running["homebase_decode_tokens_per_second",] > 0
        assert 0 < running["homebase_draft_acceptance_ratio",] <= 1
        assert 0 < running["vllm:kv_cache_usage_perc",] <= 1
        assert [ask(server, "one more", 5)[0] for _ in range(3)] == [429] * 3
    server.wait_until("both slots are free", lambda: not scrape(server)["homebase_requests_in_flight",])

    ended = scrape(server)
    assert ended["homebase_requests_refused_total", "in_flight_full"] == 3
    assert ended["homebase_requests_cancelled_total", "decode"] == ended["vllm:request_success_total", "abort"] == 2
    assert ended["homebase_requests_admitted_total",] == len(answers) + 2
    assert ended["vllm:e2e_request_latency_seconds_count",] == len(answers)
    assert ended["vllm:num_requests_running",] == ended["homebase_memory_promised_bytes",] == 0
    assert "homebase_draft_acceptance_ratio" not in {name for name, *_ in ended}
    falling = [key for key, value in answered.items() if key[0].endswith(RISING) and ended[key] < value]
    assert falling == []
