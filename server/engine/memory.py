"""Watches and trims MLX's memory. Engine thread only: clearing the cache on another thread kills the process."""

from __future__ import annotations

import logging

import mlx.core as mx

from server.events import MemorySampled
from server.memory_plan import GIB

SAMPLE_INTERVAL_S = 0.5
"""Shortest time between two samples; twice per frame of the console would show nothing more."""

TRIM_INTERVAL_STEPS = 256
"""Steps between two trims while nothing ends. Source: mlx-lm 0.32.2, `generate.py`, which clears as often."""

log = logging.getLogger(__name__)


def set_wired_limit(gib: float) -> None:
    """`[engine] wired_limit_gib`, once the model is loaded; what a device does not take is logged, and no fault."""
    if not gib:
        return
    if not mx.metal.is_available():
        log.warning(
            "engine.wired_limit_gib is %g, but this device has no memory that can be wired; it is left out", gib
        )
        return
    try:
        mx.set_wired_limit(int(gib * GIB))
    except (ValueError, RuntimeError) as fault:
        log.warning("engine.wired_limit_gib is %g, which this machine does not allow: %s", gib, fault)


class EngineMemory:
    """Decides when MLX is asked for its memory and when it gives freed buffers back."""

    def __init__(self) -> None:
        self._next_sample_s = float("-inf")
        self._steps = 0
        self._budget_bytes = 0
        self._limit_bytes: int | None = None
        """MLX's own limit, in force while there is no budget."""

    def follow(self, budget_bytes: int) -> None:
        """What MLX may hold in all, 0 for as much as it likes: it frees unused buffers before it passes that."""
        if budget_bytes == self._budget_bytes:
            return
        self._budget_bytes = budget_bytes
        previous = mx.set_memory_limit(budget_bytes or self._limit_bytes or budget_bytes)
        self._limit_bytes = previous if self._limit_bytes is None else self._limit_bytes

    def sample(self, now_s: float) -> tuple[MemorySampled, ...]:
        """MLX's account when the last one is old enough, else nothing."""
        if now_s < self._next_sample_s:
            return ()
        self._next_sample_s = now_s + SAMPLE_INTERVAL_S
        return (MemorySampled(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory()),)

    def trim(self, *, has_freed: bool) -> None:
        """Called after each step: frees unused buffers when a sequence has left, or other memory, and now and then.

        Buffers of a growing context fit no later allocation, and MLX keeps them until told. They are freed also when
        they, and what is in use, come to more than the budget.
        """
        self._steps += 1
        is_over = self._budget_bytes and mx.get_active_memory() + mx.get_cache_memory() > self._budget_bytes
        if has_freed or is_over or self._steps % TRIM_INTERVAL_STEPS == 0:
            mx.clear_cache()
