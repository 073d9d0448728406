"""How long MLX itself takes inside of code that is not ours to change: evaluating, and replaying compiled functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import msgspec


class MlxClock(msgspec.Struct):
    """Seconds in MLX since it was installed, on any thread; read it twice and subtract."""

    seconds: float = 0.0
    depth: int = 0
    """Calls under way, one inside of the other: a trace calls compiled functions itself."""


@cache
def install_clock() -> MlxClock:
    """Count the time inside `mx.eval`, `mx.async_eval` and calls of compiled functions, for the life of the process.

    First called before a model is loaded: what is compiled earlier is not seen. Later calls return the same clock. A
    first call of a compiled function runs its Python too, so warm up before reading.
    """
    clock = MlxClock()

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began_s = time.perf_counter()
            clock.depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                clock.depth -= 1
                if not clock.depth:
                    clock.seconds += time.perf_counter() - began_s

        return call

    plain_compile: Callable[..., Any] = mx.compile
    mx.eval, mx.async_eval = timed(mx.eval), timed(mx.async_eval)
    mx.compile = lambda *args, **kwargs: timed(plain_compile(*args, **kwargs))  # pyright: ignore[reportAttributeAccessIssue]
    return clock
