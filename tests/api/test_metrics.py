"""GET /metrics over the real application: who may ask, in which form, and what clients' acts add to it."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

MODEL = "org/nano"


async def scrape(rig: Any, **headers: str) -> dict[tuple[str, ...], float]:
    """Value by name and labels, these in the order of their names."""
    answer = await rig.client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse_text((await answer.get_data()).decode())
        for sample in family.samples
    }


async def test_an_idle_server_tells_zeros_and_its_limit(rig: Any) -> None:
    told = await scrape(rig)
    assert told["vllm:num_requests_running", MODEL] == told["homebase_requests_in_flight",] == 0
    assert told["homebase_requests_in_flight_limit",] == rig.policy.policy.max_in_flight
    assert told["homebase_requests_refused_total", "in_flight_full"] == 0
    assert told["vllm:generation_tokens_total", MODEL] == 0


async def test_it_answers_with_every_slot_taken_and_is_not_counted(rig: Any, chat_body: Any) -> None:
    held = [asyncio.create_task(rig.post(chat_body("four"))) for _ in range(2)]
    await rig.until(lambda: rig.admission.in_flight == 2)
    told = [await scrape(rig) for _ in range(3)][-1]
    assert told["homebase_requests_in_flight",] == told["vllm:num_requests_waiting", MODEL] == 2
    assert told["homebase_requests_admitted_total",] == 2
    assert sum(value for (name, *_), value in told.items() if name == "homebase_requests_refused_total") == 0
    for request_id in list(rig.engine.open):
        rig.engine.end(request_id, "stop")
    await asyncio.gather(*held)


async def test_answers_refusals_cancels_and_failures_add_up(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("abc", "de")
    for _ in range(3):
        assert (await rig.post(chat_body("four"))).status_code == 200
    rig.engine.script = None
    held = [asyncio.create_task(rig.post(chat_body("four"))) for _ in range(2)]
    await rig.until(lambda: len(rig.engine.open) == 2)
    for _ in range(4):
        assert (await rig.post(chat_body("four"))).status_code == 429
    stopped, broken = rig.engine.open
    rig.engine.prefill(stopped, 2, 2)
    rig.engine.end(stopped, "cancelled")
    rig.engine.end(broken, "failed", "It broke.")
    await asyncio.gather(*held)

    told = await scrape(rig)
    ends = {why: told["vllm:request_success_total", why, MODEL] for why in ("stop", "length", "abort", "error")}
    assert ends == {"stop": 3, "length": 0, "abort": 1, "error": 1}
    assert told["homebase_requests_refused_total", "in_flight_full"] == 4
    assert told["homebase_requests_admitted_total",] == 5
    assert told["homebase_requests_cancelled_total", "prefill"] == 1
    assert told["homebase_requests_failed_total", "sequence_failed"] == 1
    assert told["vllm:prompt_tokens_total", MODEL] == 3 * 4 + 2
    assert told["vllm:generation_tokens_total", MODEL] == 3 * 6
    assert told["vllm:time_to_first_token_seconds_count", MODEL] == 3
    assert told["vllm:inter_token_latency_seconds_count", MODEL] == 3 * 2
    assert told["vllm:e2e_request_latency_seconds_count", MODEL] == 3
    assert told["homebase_requests_in_flight",] == 0


async def test_bad_input_counts_as_nothing(rig: Any) -> None:
    before = await scrape(rig)
    assert (await rig.post(b"{")).status_code == 400
    after = await scrape(rig)
    assert before.pop(("homebase_uptime_seconds",)) < after.pop(("homebase_uptime_seconds",))
    assert before == after


async def test_a_key_is_asked_for_here_too(rig: Any) -> None:
    rig.set_policy(server__api_key="k")
    assert (await rig.client.get("/metrics")).status_code == 401
    assert await scrape(rig, authorization="Bearer k")


async def test_openmetrics_comes_when_it_is_asked_for(rig: Any) -> None:
    answer = await rig.client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    names = {family.name for family in parse_openmetrics((await answer.get_data()).decode())}
    assert {"vllm:prompt_tokens", "homebase_requests_refused", "homebase_build"} <= names


async def test_it_answers_while_the_model_loads_and_after_the_engine_died(rig: Any) -> None:
    rig.state = "starting"
    assert (await scrape(rig))["homebase_state", "starting"] == 1
    rig.engine.die("out of memory")
    rig.state = "engine_dead"
    assert (await scrape(rig))["homebase_state", "engine_dead"] == 1
