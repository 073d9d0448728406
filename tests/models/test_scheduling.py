"""The thread that runs a model is scheduled as a batch, and with it the workers that it starts."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from server.models.scheduling import OneCore, schedule_as_batch, schedule_plainly

CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can")
def test_only_the_calling_thread_and_those_it_starts_are_scheduled_as_batch() -> None:
    seen: dict[str, int] = {}

    def note(name: str) -> None:
        seen[name] = os.sched_getscheduler(threading.get_native_id())

    def run() -> None:
        schedule_as_batch()
        note("after")
        worker = threading.Thread(target=note, args=("worker",))
        worker.start()
        worker.join()

    before = os.sched_getscheduler(0)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen["after"] == seen["worker"] == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can")
def test_a_sandbox_that_forbids_it_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    schedule_as_batch()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can")
@pytest.mark.skipif(CORES < 2, reason="there is one core")
def test_a_thread_and_its_workers_are_held_on_one_core_and_let_go_again() -> None:
    """The others, the one that started it with them, run wherever they like."""
    end = threading.Event()

    def run() -> list[set[int]]:
        core = OneCore(hold_s=0.0)
        schedule_as_batch()
        worker = threading.Thread(target=end.wait)
        worker.start()
        threads = (threading.get_native_id(), worker.native_id)
        seen: list[set[int]] = []
        for _ in range(2):
            core.settle()
            seen += [os.sched_getaffinity(thread or 0) for thread in threads]
        end.set()
        worker.join()
        return seen

    allowed = os.sched_getaffinity(0)
    with ThreadPoolExecutor(1) as pool:
        own, worker, own_after, worker_after = pool.submit(run).result()
    assert len(own) == 1
    assert own == worker
    assert own < allowed
    assert own_after == worker_after == os.sched_getaffinity(0) == allowed


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can")
def test_a_thread_that_was_started_from_there_can_leave() -> None:
    seen: list[tuple[int, set[int]]] = []

    def leave() -> None:
        schedule_plainly()
        seen.append((os.sched_getscheduler(0), os.sched_getaffinity(0)))

    def run() -> None:
        core = OneCore(hold_s=60.0)
        schedule_as_batch()
        core.settle()
        other = threading.Thread(target=leave)
        other.start()
        other.join()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
    assert seen == [(os.SCHED_OTHER, os.sched_getaffinity(os.getpid()))]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can")
def test_a_core_is_held_for_its_time() -> None:
    def run() -> set[int]:
        core = OneCore(hold_s=60.0)
        schedule_as_batch()
        core.settle()
        core.settle()
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(run).result()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can")
def test_threads_of_another_model_are_left_alone() -> None:
    ready, end = threading.Event(), threading.Event()

    def wait() -> set[int]:
        schedule_as_batch()
        ready.set()
        end.wait()
        return os.sched_getaffinity(0)

    def run() -> None:
        core = OneCore(hold_s=60.0)
        schedule_as_batch()
        core.settle()

    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(wait)
        ready.wait()
        pool.submit(run).result()
        end.set()
        assert other.result() == os.sched_getaffinity(0)
