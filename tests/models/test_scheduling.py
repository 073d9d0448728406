"""The thread that runs a model is scheduled as a batch, and with it the workers that it starts."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from server.models.scheduling import schedule_as_batch


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
