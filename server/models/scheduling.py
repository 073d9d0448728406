"""How the system schedules the thread that runs a model, and the workers that MLX starts from it. Linux alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time

HOLD_S = 1.0
"""How long threads stay on a core before the system may pick another: one step in a second is run without it."""


def schedule_as_batch() -> None:
    """Let threads that the calling one wakes up wait until it sleeps, for the rest of its life; only Linux can.

    MLX's CPU backend hands each of a step's 1,200 operations to a worker thread of its own. An ordinary worker pushes
    the thread that feeds it aside at every one of them: steps of 1 and 4 rows of nano take 7.0 and 12.4 ms, and 5.5 and
    10.4 scheduled as a batch; beside another busy program 13.0 and 23.6, and 11.4 and 20.4 (2 x86 cores, Linux 6.18,
    MLX 0.32.4, 2026-11-30). Workers inherit it, so call it before MLX has run anything on the thread.
    """
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):  # some sandboxes
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def schedule_plainly() -> None:
    """On any core and like any other thread: for one that was started by a thread that runs a model."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # some sandboxes
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))


class OneCore:
    """Keeps the calling thread and the workers that it started on one core, which the system picks again and again.

    Apart, every operation that one hands to the other wakes up a core: steps of 1 and 4 rows of nano then take 9.3 and
    13.8 ms, and on one core 5.5 and 9.4 (2 x86 cores, Linux 6.18, MLX 0.32.4, 2026-11-30). Nothing is lost, since they
    take turns: one builds a step, the other runs it. For a GPU, and where threads are not scheduled as a batch, it does
    nothing.
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        """To be made on the thread that will call `settle`, before it is scheduled as a batch."""
        self._hold_s = hold_s
        self._held, self._until_s = False, 0.0
        self._allowed = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()
        self._strangers = _find_batch_threads() - {threading.get_native_id()}
        self._own: set[int] = set()

    def settle(self) -> None:
        """Between two steps: hold on to the core that this is, or let go for a step when it was held long enough."""
        if len(self._allowed) < 2 or time.monotonic() < self._until_s:
            return
        self._own = self._own or _find_batch_threads() - self._strangers
        if self._held:
            self._put(self._allowed)
        else:
            self._put({_read_core()})
            self._until_s = time.monotonic() + self._hold_s
        self._held = not self._held

    def _put(self, cores: set[int]) -> None:
        if sys.platform == "linux":
            for thread in self._own:
                with contextlib.suppress(OSError):  # it has ended, or a sandbox forbids it
                    os.sched_setaffinity(thread, cores)


def _find_batch_threads() -> set[int]:
    """The threads of this process that are scheduled as a batch: those that run models, and MLX's workers of theirs."""
    found: set[int] = set()
    if sys.platform == "linux":
        for name in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has just ended
                if os.sched_getscheduler(int(name)) == os.SCHED_BATCH:
                    found.add(int(name))
    return found


def _read_core() -> int:
    """The core that the calling thread runs on."""
    return ctypes.CDLL(None).sched_getcpu()
