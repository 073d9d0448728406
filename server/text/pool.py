"""A few threads for text work that is too slow for an event loop: chat templates and tokenizing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

WORKERS = 2
"""Two: a long prompt does not hold up a short one, and the engine's core is left alone."""


class TextPool:
    """Runs text work beside an event loop. Threads start at the first use."""

    def __init__(self, workers: int = WORKERS) -> None:
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="text")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, or what it raised. When the caller is cancelled, work that waits is never begun."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Take no more work and drop what waits; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
