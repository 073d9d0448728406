"""Server-sent events: frames, and the queue between the task that makes them and the connection that takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: every parser of the format skips it, and the bytes keep the connection from looking dead."""


def build_comment() -> bytes:
    """What keeps a connection alive where its client counts bytes."""
    return KEEP_ALIVE


DONE = b"data: [DONE]\n\n"
"""How the OpenAI dialect ends a stream that went well."""

UNREAD_MOST_BYTES = 1024 * 1024
"""What waits for a reader that does not read, beyond what the sockets hold: hours of text for one who reads."""


def build_frame(data: bytes, event: str = "", id: int | None = None) -> bytes:
    """One event, named where the dialect has names. `data` has no line break, as JSON from msgspec never has."""
    numbered = f"id: {id}\n".encode() if id is not None else b""
    named = f"event: {event}\n".encode() if event else b""
    return numbered + named + b"data: " + data + b"\n\n"


class Outbox:
    """Frames on their way to one reader. Putting never waits; taking gives a sign of life when too little comes."""

    def __init__(self, keep_alive_s: float, build_keep_alive: Callable[[], bytes] = build_comment) -> None:
        self._keep_alive_s, self._build_keep_alive = keep_alive_s, build_keep_alive
        self._frames: deque[bytes] = deque()
        self._unread_bytes = 0
        self._unread_since_s = 0.0
        self._is_closed = False
        self._is_quiet = False
        """True when a sign of life is due."""
        self._given_s = 0.0
        """When something was last handed out."""
        self._changed = asyncio.Event()

    @property
    def unread_bytes(self) -> int:
        """Bytes put and not taken."""
        return self._unread_bytes

    @property
    def unread_s(self) -> float:
        """For how long the oldest of them has waited; 0 when there is none."""
        return asyncio.get_running_loop().time() - self._unread_since_s if self._frames else 0.0

    def put(self, frame: bytes) -> None:
        """Add a frame; an empty one is none."""
        if not frame:
            return
        if not self._frames:
            self._unread_since_s = asyncio.get_running_loop().time()
        self._frames.append(frame)
        self._unread_bytes += len(frame)
        self._changed.set()

    def close(self) -> None:
        """No frame follows."""
        self._is_closed = True
        self._changed.set()

    async def take(self) -> AsyncIterator[bytes]:
        """What there is, as soon as there is any, all waiting frames at once; ends after `close`.

        The clock runs from the last bytes handed out, whatever goes on elsewhere.
        """
        loop = asyncio.get_running_loop()
        self._given_s = loop.time()
        clock = asyncio.create_task(self._watch_clock())
        try:
            while True:
                if self._frames:
                    yield self._take_frames()
                elif self._is_closed:
                    return
                elif self._is_quiet:
                    yield self._build_keep_alive()
                else:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                self._is_quiet, self._given_s = False, loop.time()
        finally:
            clock.cancel()

    def _take_frames(self) -> bytes:
        joined = b"".join(self._frames)
        self._frames.clear()
        self._unread_bytes = 0
        return joined

    async def _watch_clock(self) -> None:
        """Wake the reader when nothing was handed out for too long: one timer for each silence, none for a token."""
        loop = asyncio.get_running_loop()
        while True:
            left_s = self._given_s + self._keep_alive_s - loop.time()
            if left_s <= 0:
                self._is_quiet, left_s = True, self._keep_alive_s
                self._changed.set()
            await asyncio.sleep(left_s)
