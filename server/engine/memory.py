"""Watches and trims MLX's memory. Engine thread only: clearing the cache on another thread kills the process."""

from __future__ import annotations

import mlx.core as mx

from server.events import MemorySampled

SAMPLE_INTERVAL_S = 0.5
"""Shortest time between two samples; twice per frame of the console would show nothing more."""

TRIM_INTERVAL_STEPS = 256
"""Steps between two trims while nothing ends. Source: mlx-lm 0.32.2, `generate.py`, which clears as often."""


class EngineMemory:
    """Decides when MLX is asked for its memory and when it gives freed buffers back."""

    def __init__(self) -> None:
        self._next_sample_s = float("-inf")
        self._steps = 0

    def sample(self, now_s: float) -> tuple[MemorySampled, ...]:
        """MLX's account when the last one is old enough, else nothing."""
        if now_s < self._next_sample_s:
            return ()
        self._next_sample_s = now_s + SAMPLE_INTERVAL_S
        return (MemorySampled(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory()),)

    def trim(self, *, sequence_ended: bool) -> None:
        """Called after each step: frees unused buffers when a sequence has left, and now and then otherwise.

        Buffers of a growing context fit no later allocation, and MLX keeps them until told.
        """
        self._steps += 1
        if sequence_ended or self._steps % TRIM_INTERVAL_STEPS == 0:
            mx.clear_cache()
