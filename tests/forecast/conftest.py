"""A model and streams to forecast with, of round numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.models.cache import ModelFacts
from server.snapshot import StreamView
from server.step_reads import StepReads, TimedSteps


def build_facts(**changes: Any) -> ModelFacts:
    """A model of 1 GB on a device that reads 100 GB/s: 10 ms a step."""
    fields: dict[str, Any] = {
        "id": "m",
        "path": "/m",
        "architecture": "a",
        "vocab_size": 100,
        "context_limit_tokens": 8192,
        "dtype": "float32",
        "quantization": "none",
        "parameters": 1,
        "weights_bytes": 10**9,
        "has_mtp": False,
        "embedded": False,
        "stream_bytes": 0,
        "token_bytes": 1000,
        "device_bytes": 2 * 10**9,
        "reads": StepReads(dense_bytes=10**9, context_bytes=1000),
        "timed": TimedSteps(),
        "bandwidth_bps": 1e11,
    }
    return ModelFacts(**(fields | changes))


def build_stream(**changes: Any) -> StreamView:
    fields: dict[str, Any] = {
        "id": "r",
        "session": "s",
        "parent_session": None,
        "lane": "unknown",
        "client": "c",
        "model": "m",
        "phase": "decode",
        "context_tokens": 100,
        "context_limit_tokens": 4096,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "max_tokens": 100,
        "prefill_done_tokens": 100,
        "prefill_tps": 50.0,
        "decode_tps": 10.0,
        "ttft_s": 0.1,
        "age_s": 1.0,
        "idle_s": 0.0,
        "streaming": True,
        "decode_history_tps": (),
    }
    return StreamView(**(fields | changes))


@pytest.fixture(name="facts")
def facts_fixture() -> Callable[..., ModelFacts]:
    return build_facts


@pytest.fixture(name="stream")
def stream_fixture() -> Callable[..., StreamView]:
    return build_stream
