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
    """Runs text work beside an event loop. Threads start at the first use.

    What no answer waits for, such as a count, has one thread of its own: however much is asked of it, a prompt that
    is to be answered does not stand behind it.
    """

    def __init__(self, workers: int = WORKERS) -> None:
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="text")
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="text-aside")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, or what it raised. When the caller is cancelled, work that waits is never begun."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def run_aside(self, work: Callable[[], T]) -> T:
        """As `run`, after all that was handed over in this way before."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, work)

    def close(self) -> None:
        """Take no more work and drop what waits; what runs ends by itself."""
        for executor in (self._executor, self._aside):
            executor.shutdown(wait=False, cancel_futures=True)
