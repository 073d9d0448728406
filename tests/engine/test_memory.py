from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from server.engine.memory import SAMPLE_INTERVAL_S, TRIM_INTERVAL_STEPS, EngineMemory, set_wired_limit
from server.events import MemorySampled

if TYPE_CHECKING:
    from tests.engine.conftest import Gate, HashModel, RequestMaker, Rig


def test_samples_come_at_their_interval_and_say_what_mlx_says() -> None:
    memory = EngineMemory()
    kept = mx.zeros((100_000,))
    mx.eval(kept)
    (sample,) = memory.sample(100.0)
    assert isinstance(sample, MemorySampled)
    assert sample.active_bytes >= kept.nbytes
    assert sample.peak_bytes >= sample.active_bytes
    assert memory.sample(100.0 + SAMPLE_INTERVAL_S / 2) == ()
    assert len(memory.sample(100.0 + SAMPLE_INTERVAL_S)) == 1


@pytest.fixture
def clears(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    calls: list[None] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append(None))
    return calls


def test_buffers_are_given_back_when_a_sequence_ends(clears: list[None]) -> None:
    memory = EngineMemory()
    memory.trim(has_freed=False)
    assert len(clears) == 0
    memory.trim(has_freed=True)
    assert len(clears) == 1


def test_buffers_are_given_back_now_and_then_while_nothing_ends(clears: list[None]) -> None:
    memory = EngineMemory()
    for _ in range(3 * TRIM_INTERVAL_STEPS):
        memory.trim(has_freed=False)
    assert len(clears) == 3


def test_buffers_of_a_cancelled_sequence_are_given_back_though_no_step_follows(
    rig: Rig, ask: RequestMaker, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared = threading.Event()

    def prepare(model: HashModel) -> None:
        model.before = lambda ids: gate.pass_through(ids) if len(ids) == 16 else None

    rig.prepare = prepare
    rig.start()
    rig.engine.submit(ask("a", prompt=400))
    assert gate.reached.wait(20)
    monkeypatch.setattr(mx, "clear_cache", cleared.set)
    rig.engine.cancel("a")
    gate.open()
    rig.wait_end("a")
    assert cleared.wait(5)


def test_buffers_are_given_back_when_they_pass_the_budget(clears: list[None]) -> None:
    memory = EngineMemory()
    held = mx.get_active_memory() + mx.get_cache_memory()
    memory.follow(held + 2**30)
    memory.trim(has_freed=False)
    assert len(clears) == 0
    memory.follow(1)
    memory.trim(has_freed=False)
    assert len(clears) == 1
    memory.follow(0)
    memory.trim(has_freed=False)
    assert len(clears) == 1


def test_mlx_has_the_budget_as_its_limit_and_its_own_one_back_without(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [5000]

    def set_limit(limit: int) -> int:
        limits.append(limit)
        return limits[-2]

    monkeypatch.setattr(mx, "set_memory_limit", set_limit)
    memory = EngineMemory()
    for budget in (0, 70, 70, 60, 0, 80):
        memory.follow(budget)
    assert limits == [5000, 70, 60, 5000, 80]


@pytest.mark.skipif(mx.metal.is_available(), reason="this device can")
def test_a_wired_limit_where_none_can_be_is_told_and_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    set_wired_limit(0.0)
    assert not caplog.records
    set_wired_limit(4.0)
    assert "engine.wired_limit_gib is 4" in caplog.text
