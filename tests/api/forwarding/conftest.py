"""A second server on a socket, that does as it is told: answers, stalls, breaks off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.policy import validate_policy

Script = Callable[["Visit"], Awaitable[None]]

EVENTS = (
    {"id": "c1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"id": "c1", "choices": [{"index": 0, "delta": {"content": "one"}}]},
    {"id": "c1", "choices": [{"index": 0, "delta": {"content": " two"}}]},
    {"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"id": "c1", "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 6, "total_tokens": 17}},
)


@dataclass
class Visit:
    """One request, and the way back."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the other end has gone."""

    async def head(self, status: int = 200, content_type: str = "text/event-stream", *more: str) -> None:
        lines = (f"HTTP/1.1 {status} X", f"content-type: {content_type}", "transfer-encoding: chunked", *more)
        self.writer.write("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def event(self, document: Any) -> None:
        await self.send(b"data: " + json.dumps(document).encode() + b"\n\n")

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def answer(self, status: int, document: Any, *more: str) -> None:
        await self.head(status, "application/json", *more)
        await self.send(document if isinstance(document, bytes) else json.dumps(document).encode())
        await self.end()


async def speak(visit: Visit) -> None:
    """A short stream in the chat dialect, or the list of models."""
    if visit.method == "GET":
        await visit.answer(200, {"data": []})
        return
    await visit.head()
    for event in EVENTS:
        await visit.event(event)
    await visit.send(b"data: [DONE]\n\n")
    await visit.end()


@dataclass
class FakeUpstream:
    """The server; `script` answers each request."""

    script: Script = speak
    visits: list[Visit] = field(default_factory=list)
    looks: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def only(self) -> Visit:
        (visit,) = self.visits
        return visit

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (visit := await self._read(reader, writer)) is not None:
                if visit.method == "GET":
                    self.looks += 1
                else:
                    self.visits.append(visit)
                watch = asyncio.create_task(self._watch(reader, visit))
                await self.script(visit)
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _watch(self, reader: asyncio.StreamReader, visit: Visit) -> None:
        """Notice the end of the connection without taking anything from it."""
        while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110  # a reader has no event for its end
            await asyncio.sleep(0.002)
        visit.closed.set()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Visit | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Visit(method, target, headers, body, writer)


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    fake = FakeUpstream()
    server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    yield fake
    server.close()


@pytest.fixture
async def use(rig: Any) -> AsyncIterator[Callable[..., None]]:
    """Put upstreams, and aliases, into the policy in force."""

    def put(*tables: dict[str, Any], aliases: dict[str, str] | None = None, **policy: Any) -> None:
        rig.policy = validate_policy({"upstreams": list(tables), "aliases": aliases or {}, "policy": policy})

    yield put
    await rig.upstreams.close()


@pytest.fixture
def one(upstream: FakeUpstream, use: Callable[..., None]) -> Callable[..., None]:
    """Put this upstream alone into the policy, with changes to its table."""

    def put(models: Sequence[str] = ("far",), aliases: dict[str, str] | None = None, **changes: Any) -> None:
        table = {"name": "far-away", "base_url": upstream.url, "models": list(models), **changes}
        use(table, aliases=aliases)

    return put
