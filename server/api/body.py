"""Reads a request's body: never more bytes than the limit, never for longer than its time."""

from __future__ import annotations

import asyncio

from quart.wrappers.request import Body
from werkzeug.exceptions import RequestEntityTooLarge

from server.errors import BodyTooLarge, BodyTooSlow

LIMIT_BYTES = 32 * 1024 * 1024
"""Ten times the longest prompt that agents send; a 10 MB prompt cost other servers over a gigabyte or their life."""

STALL_S = 15.0
"""Without a byte for this long the client is not waited for."""

TOTAL_S = 60.0
"""For the whole body."""

DRAIN_BYTES = 256 * 1024 * 1024
DRAIN_S = 5.0
DRAIN_QUIET_S = 0.5
"""How much of a refused body is read and thrown away, for how long at most, and after what silence it is given up.

A socket that is closed on unread bytes resets the connection, and the client then never sees why.
"""


class BoundedBody(Body):
    """A body as Quart collects it, that also counts what arrives after the limit; those bytes are not kept."""

    def __init__(self, expected_content_length: int | None, max_content_length: int | None) -> None:
        super().__init__(expected_content_length, max_content_length)
        self.expected_bytes = expected_content_length
        self.arrived_bytes = 0
        self._has_ended = False

    def append(self, data: bytes) -> None:
        """Take in the next bytes. Beyond the limit they are counted only."""
        self.arrived_bytes += len(data)
        super().append(data)
        if self.arrived_bytes > LIMIT_BYTES:
            self.clear()

    def set_complete(self) -> None:
        """The client has sent all of it. Quart calls this also for a body that has become too long."""
        self._has_ended = self.arrived_bytes <= LIMIT_BYTES
        super().set_complete()

    @property
    def may_be_coming(self) -> bool:
        """True when the client may still be sending."""
        if self.expected_bytes is None:
            return not self._has_ended and self.arrived_bytes > 0
        return self.arrived_bytes < self.expected_bytes


async def read_body(body: BoundedBody, *, stall_s: float = STALL_S, total_s: float = TOTAL_S) -> bytes:
    """All bytes. Raises BodyTooLarge as soon as that is known, BodyTooSlow when they do not come."""
    parts = bytearray()
    try:
        async with asyncio.timeout(total_s):
            while (part := await _next_part(body, stall_s)) is not None:
                parts += part
                _check_size(body)
    except RequestEntityTooLarge:
        raise BodyTooLarge(LIMIT_BYTES, body.expected_bytes) from None
    except TimeoutError:
        raise BodyTooSlow(
            f"The request body did not arrive in time: {body.arrived_bytes:,} bytes came in {total_s:g} s, and that "
            "was not all."
        ) from None
    _check_size(body)  # the last part may have been the one too many, which is not handed out
    return bytes(parts)


async def drain_body(body: BoundedBody, *, drain_s: float = DRAIN_S, quiet_s: float = DRAIN_QUIET_S) -> None:
    """Let the rest of a refused body arrive and vanish, within bounds."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + drain_s
    seen, seen_s = body.arrived_bytes, loop.time()
    while body.may_be_coming and loop.time() < end_s and body.arrived_bytes < DRAIN_BYTES:
        await asyncio.sleep(0.02)
        if body.arrived_bytes > seen:
            seen, seen_s = body.arrived_bytes, loop.time()
        elif loop.time() - seen_s >= quiet_s:
            return


def _check_size(body: BoundedBody) -> None:
    # Quart compares its limit with what waits to be read, which is little when it is read as it comes.
    if body.arrived_bytes > LIMIT_BYTES:
        raise BodyTooLarge(LIMIT_BYTES)


async def _next_part(body: BoundedBody, stall_s: float) -> bytes | None:
    try:
        async with asyncio.timeout(stall_s):
            return await anext(body)
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise BodyTooSlow(
            f"The request body did not arrive in time: nothing came for {stall_s:g} s after "
            f"{body.arrived_bytes:,} bytes."
        ) from None
