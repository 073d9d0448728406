from __future__ import annotations

from typing import Any

import pytest

from server.engine.scheduler import Need
from server.events import StepCost
from server.forecast.prior import Physics
from server.forecast.waits import PrefillLoad, forecast_ttft_s, read_load
from server.policy import EnginePolicy
from server.step_reads import StepReads, TimedSteps

PHYSICS = Physics(StepReads(dense_bytes=10**9), 1e11, TimedSteps(chunk_s=0.64))
COST = StepCost(step_s=0.01, sequence_s=0.01, prefill_s=0.064, error_ratio=0.0)
"""A millisecond for each prompt token, and 10 ms for each step and each decoder."""
ENGINE = EnginePolicy(prefill_chunk_tokens=512)


def test_alone_a_prompt_takes_its_tokens_and_a_step_for_each_chunk() -> None:
    ttft_s = forecast_ttft_s(PHYSICS, COST, ENGINE, PrefillLoad(), 2048)
    assert ttft_s == pytest.approx(2.048 + 4 * 0.01)


def test_cached_tokens_are_not_read() -> None:
    ttft_s = forecast_ttft_s(PHYSICS, COST, ENGINE, PrefillLoad(), 2048, cached_tokens=1536)
    assert ttft_s == pytest.approx(0.512 + 0.01)


def test_beside_a_decoder_chunks_are_as_short_as_the_stall_allows() -> None:
    engine = EnginePolicy(prefill_chunk_tokens=2048, decode_stall_ms=100)
    ttft_s = forecast_ttft_s(PHYSICS, COST, engine, PrefillLoad((Need("a", 0, 0, context_tokens=10),)), 800)
    # 80 ms of a step of 100 are left for the chunk: ten steps of 80 tokens.
    assert ttft_s == pytest.approx(1.0, rel=0.02)


def test_other_prompts_take_turns_and_no_more_of_them_is_read_than_of_its_own() -> None:
    alone = forecast_ttft_s(PHYSICS, COST, ENGINE, PrefillLoad(), 512)
    beside = forecast_ttft_s(PHYSICS, COST, ENGINE, PrefillLoad(unread_tokens=(100_000, 256)), 512)
    assert alone is not None
    assert beside == pytest.approx(alone * (1 + 1 + 0.5))


def test_before_prefill_was_measured_the_timed_chunk_tells_and_without_that_nothing() -> None:
    assert forecast_ttft_s(PHYSICS, StepCost(), ENGINE, PrefillLoad(), 1000) == pytest.approx(10.0)
    assert forecast_ttft_s(Physics(), StepCost(), ENGINE, PrefillLoad(), 1000) is None


def test_the_load_is_what_streams_in_flight_do(stream: Any) -> None:
    streams = [
        stream(id="a", draft_depth=2, context_tokens=700),
        stream(id="b", phase="prefill", prompt_tokens=1000, prefill_done_tokens=400),
        stream(id="c", phase="waiting", prompt_tokens=50, prefill_done_tokens=0),
        stream(id="d", phase="finished"),
    ]
    assert read_load(streams) == PrefillLoad((Need("a", 0, 0, context_tokens=700, draft_tokens=2),), (600, 50))
