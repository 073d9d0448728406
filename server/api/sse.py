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


def build_frame(data: bytes, event: str = "") -> bytes:
    """One event, named where the dialect has names. `data` has no line break, as JSON from msgspec never has."""
    named = f"event: {event}\n".encode() if event else b""
    return named + b"data: " + data + b"\n\n"


class Outbox:
    """Frames on their way to one reader. Putting never waits; taking gives a sign of life when too little comes."""

    def __init__(self, keep_alive_s: float, build_keep_alive: Callable[[], bytes] = build_comment) -> None:
        self._keep_alive_s, self._build_keep_alive = keep_alive_s, build_keep_alive
        self._frames: deque[bytes] = deque()
        self._unread_bytes = 0
        self._unread_since_s = 0.0
        self._is_closed = False
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
        while True:
            if self._frames:
                joined = b"".join(self._frames)
                self._frames.clear()
                self._unread_bytes = 0
                yield joined
            elif self._is_closed:
                return
            elif not await self._wait():
                yield self._build_keep_alive()

    async def _wait(self) -> bool:
        """True when something changed, False when the time of a comment has come."""
        self._changed.clear()
        try:
            async with asyncio.timeout(self._keep_alive_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True
