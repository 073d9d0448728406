"""One request to an upstream, and its answer as it comes. Nothing of either is logged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from server.errors import HomebaseError, UpstreamError, UpstreamFailed, UpstreamSilent
from server.policy import UpstreamPolicy
from server.upstreams.headers import build_response_headers
from server.upstreams.health import Health
from server.upstreams.http_library import httpx

T = TypeVar("T")

WHOLE_MOST_BYTES = 64 * 1024 * 1024
"""Of an answer in one piece."""


class Outgoing(msgspec.Struct, frozen=True):
    """What an upstream is sent."""

    path: str
    """Behind its base_url, with the query."""
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """One request, read by the task that made it; another may `stop` it."""

    def __init__(self, upstream: UpstreamPolicy, client: httpx.AsyncClient, health: Health) -> None:
        self.upstream = upstream
        self._client, self._health = client, health
        self._response: httpx.Response | None = None
        self._parts: AsyncIterator[bytes] | None = None
        self._is_heard = self._is_over = False
        self._waiting: asyncio.Task[object] | None = None
        self._stopped: HomebaseError | None = None

    @property
    def status(self) -> int:
        """Of the answer."""
        assert self._response is not None, "nothing was sent yet"
        return self._response.status_code

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Of the answer, those that are for the client."""
        assert self._response is not None, "nothing was sent yet"
        return build_response_headers(self._response.headers.multi_items())

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of events that can be read on its way."""
        assert self._response is not None, "nothing was sent yet"
        headers = self._response.headers
        return headers.get("content-type", "").lower().startswith("text/event-stream") and (
            headers.get("content-encoding", "identity").lower() == "identity"
        )

    async def send(self, outgoing: Outgoing) -> None:
        """Send it and wait for the head of the answer. Raises UpstreamError, and what `stop` was given."""
        upstream = self.upstream
        request = httpx.Request(
            "POST",
            f"{upstream.base_url.rstrip('/')}{outgoing.path}",
            # What is no ASCII goes on in UTF-8, as it came; the library would raise.
            headers=[(name.encode(), value.encode()) for name, value in outgoing.headers.items()],
            content=outgoing.body,
            extensions={"timeout": build_timeout(upstream).as_dict()},
        )
        try:
            self._response = await self._wait(lambda: self._client.send(request, stream=True))
        except httpx.HTTPError as fault:
            raise self._fail(fault) from None
        if self._response.has_redirect_location:
            raise self._note(
                UpstreamFailed(
                    f"The upstream {upstream.name} answered with a redirect, which is not followed: its key would go "
                    "along. Set its base_url to where it leads.",
                    upstream.name,
                )
            )
        if self._response.status_code >= 500:
            self._is_heard = True
            self._health.failed(f"It answered with status {self._response.status_code}.")
        else:
            self._hear()
        self._parts = self._response.aiter_raw()

    async def read(self) -> bytes:
        """The next bytes, as they come; none at the end. Raises UpstreamError, and what `stop` was given."""
        parts = self._parts
        assert parts is not None, "nothing was sent yet"
        try:
            data = await self._wait(lambda: anext(parts, b""))
        except (httpx.HTTPError, httpx.StreamError) as fault:
            raise self._fail(fault) from None
        if data and self.status < 500:
            self._hear()
        return data

    async def read_whole(self) -> bytes:
        """All of it. Raises as `read` does, and UpstreamFailed for an answer that is too long."""
        parts = bytearray()
        while data := await self.read():
            parts += data
            if len(parts) > WHOLE_MOST_BYTES:
                raise self._note(
                    UpstreamFailed(f"The answer of the upstream {self.upstream.name} is too long.", self.upstream.name)
                )
        return bytes(parts)

    def break_off(self) -> UpstreamError:
        """The error for an answer that ended before its end."""
        return self._note(
            UpstreamFailed(f"The upstream {self.upstream.name} broke off within its answer.", self.upstream.name)
        )

    def stop(self, error: HomebaseError) -> None:
        """Make who waits for this raise an error, now or as soon as it waits."""
        if self._stopped is None and not self._is_over:
            self._stopped = error
            if self._waiting is not None:
                self._waiting.cancel()

    async def close(self) -> None:
        """End it: what still comes is not read, the connection of an unfinished answer is closed."""
        if self._is_over:
            return
        self._is_over = True
        self._health.end()
        if not self._is_heard:
            self._health.left()
        if self._response is not None:
            await self._response.aclose()

    async def _wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Wait for something, or until `stop`. A client that leaves in the same moment counts more."""
        if self._stopped is not None:
            raise self._stopped
        task = self._waiting = asyncio.current_task()
        try:
            return await begin()
        except asyncio.CancelledError:
            if self._stopped is None or task is None or task.uncancel():
                raise
            raise self._stopped from None
        finally:
            self._waiting = None

    def _hear(self) -> None:
        self._is_heard = True
        self._health.heard()

    def _note(self, error: UpstreamError) -> UpstreamError:
        self._is_heard = True
        self._health.failed(error.message)
        return error

    def _fail(self, fault: Exception) -> UpstreamError:
        """The error for what the HTTP library met, which is not quoted: it may tell of headers."""
        return self._note(explain_fault(fault, self.upstream, within=self._response is not None))


def explain_fault(fault: Exception, upstream: UpstreamPolicy, *, within: bool = False) -> UpstreamError:
    """What an HTTP library's error means; `within` an answer or before it."""
    name = upstream.name
    match fault:
        case httpx.ConnectTimeout():
            return UpstreamFailed(
                f"The upstream {name} could not be reached within {say_time(upstream.connect_timeout_s)} "
                "(connect_timeout_s).",
                name,
            )
        case httpx.ConnectError():
            return UpstreamFailed(f"The upstream {name} cannot be reached: nothing answers at its base_url.", name)
        case httpx.TimeoutException():
            return UpstreamSilent(
                f"The upstream {name} said nothing for {say_time(upstream.silence_timeout_s)} (silence_timeout_s).",
                name,
            )
        case _:
            place = "within" if within else "before"
            return UpstreamFailed(f"The upstream {name} broke off {place} its answer.", name)


def say_time(seconds: float) -> str:
    """A time in words; minutes for long ones, whose seconds agents could read as a status."""
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def build_timeout(upstream: UpstreamPolicy) -> httpx.Timeout:
    """How long each part of a request may take."""
    return httpx.Timeout(upstream.silence_timeout_s, connect=upstream.connect_timeout_s, pool=None)
