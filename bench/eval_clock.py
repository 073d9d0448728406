"""How long a thread works outside of MLX: of its own processor time, what passes between two calls into MLX."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx


class OutsideClock(threading.local):
    """Where one thread stands."""

    def __init__(self) -> None:
        self.depth = 0
        """Calls under way, one inside of the other: a trace calls compiled functions itself."""
        self.left_s: float | None = None
        """The thread's processor time when it last came out of MLX."""


class Total:
    """Seconds outside, of all threads; read it twice and subtract."""

    seconds = 0.0


@cache
def install_clock() -> Total:
    """Count what passes between calls of `mx.eval`, `mx.async_eval` and compiled functions, for the life of a process.

    Processor time and not the clock on the wall: MLX's worker takes its turns on the same core, and so do other
    programs. First called before a model is loaded: what is compiled earlier is not seen. Later calls return the same
    total. A first call of a compiled function runs its Python too, so warm up before reading.
    """
    total, own = Total(), OutsideClock()

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if own.left_s is not None and not own.depth:
                total.seconds += time.thread_time() - own.left_s
            own.depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                own.depth -= 1
                if not own.depth:
                    own.left_s = time.thread_time()

        return call

    plain_compile: Callable[..., Any] = mx.compile
    mx.eval, mx.async_eval = timed(mx.eval), timed(mx.async_eval)
    mx.compile = lambda *args, **kwargs: timed(plain_compile(*args, **kwargs))  # pyright: ignore[reportAttributeAccessIssue]
    return total
