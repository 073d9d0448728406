"""A checkpoint on Hugging Face to a folder here: a process of its own fetches it, and its progress is told.

Imports neither MLX nor huggingface_hub. Asks no network when the cache holds the whole checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.errors import ModelError, ModelNotFetched, ModelNotFound
from server.models.folder import HubId
from server.snapshot import FetchView

RATE_WINDOW_S = 10.0
"""What the rate is taken over: a stall shows soon, and a wave of small files does not."""


class FetchPace:
    """From bytes at moments to how fast it goes and how long it will take."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, done: int, total: int) -> FetchView:
        """How far it is, given what is here at a moment; moments ascend."""
        self._seen.append((now_s, done))
        while now_s - self._seen[0][0] > RATE_WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()
        since_s, before = self._seen[0]
        rate = max(0.0, (done - before) / (now_s - since_s)) if now_s > since_s else None
        eta_s = (total - done) / rate if rate else None
        return FetchView(done_bytes=done, total_bytes=total, rate_bps=rate, eta_s=eta_s)


async def fetch_model(
    hub: HubId, report: Callable[[FetchView], object], clock: Callable[[], float] = time.monotonic
) -> Path:
    """The folder of a model, fetched when it is not in the cache; `report` is called some times a second.

    Cancelling it ends the download; what has come is kept for the next time.

    Raises:
        ModelNotFound: there is no such model.
        ModelNotFetched: there is, but it cannot be had.
    """
    command = [sys.executable, "-m", "server.models.fetch_child", hub.repo, *([hub.revision] if hub.revision else [])]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    assert process.stdout is not None
    pace = FetchPace()
    try:
        async for line in process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "folder" in said:
                return Path(said["folder"])
            if "error" in said:
                raise _build_error(said)
            report(pace.note(clock(), said["done"], said["total"]))
    except ValueError:  # not JSON: a library has printed something, or a line was cut
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    raise ModelNotFetched(f"{hub.repo} could not be fetched: the process that fetches it ended without a word.")


def _build_error(said: dict[str, Any]) -> ModelError:
    kind = ModelNotFound if said.get("code") == ModelNotFound.code else ModelNotFetched
    return kind(said["error"])
