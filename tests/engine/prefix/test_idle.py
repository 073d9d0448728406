"""Limits that are lowered while no request runs: the real engine on its thread."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from server.engine.engine import Engine
from server.engine.request import EngineRequest, Sampling
from server.events import EngineEvent, PrefixCacheSampled, SequenceEnded
from server.models.loader import load_model
from server.policy import EnginePolicy

FIXTURES = Path(__file__).parents[2] / "fixtures" / "flash_next"
SOON_S = 5.0
"""Far more than the second that it should take: other programs may be busy."""

Text = Callable[[int, int], tuple[int, ...]]


class Running:
    """A real engine, what it told, and a policy that may be edited."""

    def __init__(self) -> None:
        self.policy = EnginePolicy(prefix_cache_gib=1.0, prefix_cache_disk_gib=1.0)
        self.events: list[EngineEvent] = []
        self.engine = Engine(
            lambda: load_model(str(FIXTURES / "tiny"), "auto"), self.events.extend, lambda: self.policy
        )
        self.engine.start().result(60)

    def set(self, **policy: Any) -> None:
        self.policy = msgspec.structs.replace(self.policy, **policy)

    def run(self, request_id: str, prompt: tuple[int, ...]) -> None:
        self.engine.submit(EngineRequest(request_id, prompt, 4, Sampling(temperature=0), frozenset()))
        self.wait(lambda: any(isinstance(e, SequenceEnded) and e.request_id == request_id for e in [*self.events]), 60)

    def cached(self) -> PrefixCacheSampled:
        told = (event for event in reversed([*self.events]) if isinstance(event, PrefixCacheSampled))
        return next(told, PrefixCacheSampled(0, 0, 0))

    def wait(self, claim: Callable[[], bool], seconds: float = SOON_S) -> None:
        deadline = time.monotonic() + seconds
        while not claim() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert claim(), self.events[-3:]


@pytest.fixture
def running(text: Text) -> Iterator[Running]:
    """One that has run a prompt of 200 tokens and is idle."""
    running = Running()
    try:
        running.run("first", text(1, 200))
        running.wait(lambda: running.cached().memory_bytes > 0 and running.cached().disk_bytes > 0)
        yield running
    finally:
        assert running.engine.stop(20)
        gc.unfreeze()


def test_a_lower_share_of_the_prefix_cache_frees_memory(running: Running) -> None:
    running.set(prefix_cache_gib=0.0)
    running.wait(lambda: (running.cached().memory_bytes, running.cached().budget_bytes) == (0, 0))


def test_a_lower_budget_frees_the_prefix_cache_and_binds_mlx(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, str]] = []

    def set_limit(limit: int) -> int:
        limits.append((limit, threading.current_thread().name))
        return 0

    monkeypatch.setattr(mx, "set_memory_limit", set_limit)
    running.set(memory_budget_gib=0.001)
    running.wait(lambda: running.cached().memory_bytes == 0)
    assert limits == [(int(0.001 * 2**30), "homebase-engine")]


def test_a_lower_limit_on_disk_deletes_files(running: Running, cache_home: Path) -> None:
    assert list(cache_home.glob("*/*.safetensors"))
    running.set(prefix_cache_disk_gib=1e-6)
    running.wait(lambda: running.cached().disk_bytes == 0)
    assert not list(cache_home.glob("*/*.safetensors"))
