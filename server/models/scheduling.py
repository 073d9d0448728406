"""How the system schedules the thread that runs a model, and the workers that MLX starts from it."""

from __future__ import annotations

import contextlib
import os
import sys


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
