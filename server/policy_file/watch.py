"""Notices when a file may have changed: by the system's notices of its folders, and by a look now and then.

The slow look finds what notices miss: folders that were replaced, network disks, links bent elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from watchfiles import awatch

from server.policy_file.replace import list_hops

_LOOK_S = 2.0
"""Between two looks when no notice comes."""

_STEP_MS = 100
"""How often collected notices are asked for: the delay that a person may feel, and ten wake-ups a second."""

_DEBOUNCE_MS = 400
"""Longest collecting of notices while more keep coming."""


async def watch_file(path: Path, stop: asyncio.Event, look: Callable[[], Awaitable[None]]) -> None:
    """Call `look` at once, when the file or a link to it changes, and every two seconds, until `stop` is set."""
    async with aclosing(_wait_for_notices(path, stop)) as notices:
        async for _ in notices:
            await look()


async def _wait_for_notices(path: Path, stop: asyncio.Event) -> AsyncGenerator[None]:
    while not stop.is_set():
        hops = await asyncio.to_thread(_list_watched, path)
        yield
        try:
            async with aclosing(_watch_folders(hops, stop)) as notices:
                async for _ in notices:
                    yield
                    if await asyncio.to_thread(_list_watched, path) != hops:
                        break
        except (OSError, RuntimeError):
            # No folder to watch yet, or the system gives out no more watches: the slow look has to do.
            await _pause(stop)


def _watch_folders(hops: tuple[Path, ...], stop: asyncio.Event) -> AsyncGenerator[object]:
    """One item per burst of changes to one of these names, and one when nothing came for a while."""
    names = {hop.name for hop in hops}
    return awatch(
        *sorted({hop.parent for hop in hops}),
        watch_filter=lambda _, changed: Path(changed).name in names,
        debounce=_DEBOUNCE_MS,
        step=_STEP_MS,
        stop_event=stop,
        rust_timeout=int(_LOOK_S * 1000),
        yield_on_timeout=True,
        recursive=False,
    )


def _list_watched(path: Path) -> tuple[Path, ...]:
    try:
        return list_hops(path)
    except OSError:
        return (path,)


async def _pause(stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), _LOOK_S)
    except TimeoutError:
        return
