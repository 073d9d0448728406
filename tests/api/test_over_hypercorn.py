"""The application behind the real server and real sockets: what clients see, and what is left when they go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from server.api.body import LIMIT_BYTES

CHAT = "/v1/chat/completions"


def build_request(body: dict[str, Any] | bytes, *, extra: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}"
    return head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


async def send(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a killed client does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def hang_up(writer: asyncio.StreamWriter, *, hard: bool) -> None:
    if hard:
        reset(writer)
    else:
        writer.close()
        await writer.wait_closed()


async def until(claim: Callable[[], bool], within_s: float = 2.0) -> float:
    """Wait until a claim holds; the result is how long it took."""
    start_s = time.monotonic()
    while not claim():
        assert time.monotonic() - start_s < within_s, "it never came to hold"
        await asyncio.sleep(0.005)
    return time.monotonic() - start_s


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
async def test_a_client_that_hangs_up_frees_its_slot_within_two_seconds(
    rig: Any, port: int, chat_body: Any, streaming: bool, hard: bool, phase: str
) -> None:
    _, writer = await send(port, build_request(chat_body("x" * 10, stream=streaming)))
    await until(lambda: rig.admission.in_flight == 1)
    request_id = rig.engine.only
    if phase != "waiting":
        rig.engine.prefill(request_id, 4, 4)
    if phase == "decode":
        rig.engine.prefill(request_id, 10, 6)
        rig.engine.say(request_id, "four")
    await asyncio.sleep(0.05)
    await hang_up(writer, hard=hard)
    await until(lambda: rig.admission.in_flight == 0)
    await until(lambda: len(rig.ends()) == 1)
    place = {"waiting": "in prefill at 0 %", "prefill": "in prefill at 40 %", "decode": "in decode after 4 tokens"}
    assert rig.engine.cancelled == [request_id]
    assert rig.ends()[0].outcome == "cancelled"
    assert rig.ends()[0].detail == f"client closed the connection {place[phase]}"


async def test_two_hundred_hang_ups_at_random_moments_leave_nothing(rig: Any, port: int, chat_body: Any) -> None:
    dice = random.Random(7)
    rig.set_policy(policy__max_in_flight=64)

    async def babble(request_id: str) -> None:
        with contextlib.suppress(KeyError):
            for done in range(1, 11):
                rig.engine.prefill(request_id, done, 1)
                await asyncio.sleep(0.002)
            while request_id in rig.engine.open:
                rig.engine.say(request_id, "word ")
                await asyncio.sleep(0.002)

    talks: set[asyncio.Task[None]] = set()

    def start(_: Any, request: Any) -> None:
        talks.add(asyncio.create_task(babble(request.id)))

    rig.engine.script = start

    async def visit(port: int) -> None:
        body = chat_body("x" * 10, stream=dice.random() < 0.6)
        _, writer = await send(port, build_request(body))
        await asyncio.sleep(dice.random() * 0.06)
        await hang_up(writer, hard=dice.random() < 0.5)

    for _ in range(10):
        await asyncio.gather(*(visit(port) for _ in range(20)))
    await until(lambda: rig.admission.in_flight == 0 and not rig.engine.open)
    rig.engine.script = None
    await asyncio.gather(*talks)
    before = len(asyncio.all_tasks())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/health")).status_code == 200
    assert before < 20, "tasks of dead connections are left"
    assert not rig.refusals()
    assert len(rig.ends()) == rig.admission.admitted_total > 20
    assert {end.outcome for end in rig.ends()} == {"cancelled"}
    assert not [view for view in rig.streams() if view.phase != "finished"]


async def test_a_stream_shows_headers_at_once_and_comments_while_nothing_comes(
    rig: Any, port: int, chat_body: Any
) -> None:
    rig.set_policy(server__keep_alive_s=0.5)
    start_s = time.monotonic()
    reader, writer = await send(port, build_request(chat_body(stream=True)))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 1)
    assert b"200" in head.splitlines()[0]
    assert time.monotonic() - start_s < 0.5
    seen = b""
    while seen.count(b": keep-alive\n\n") < 2:
        seen += await asyncio.wait_for(reader.read(1000), 0.9)
        # Progress that shows no text must not put the comments off.
        if rig.engine.open:
            rig.engine.prefill(rig.engine.only, 1, 1)
    assert seen.index(b'"role":"assistant"') < seen.index(b": keep-alive")
    await hang_up(writer, hard=False)
    await until(lambda: rig.admission.in_flight == 0)


async def test_comments_go_on_while_generated_text_is_held_back(rig: Any, port: int, chat_body: Any) -> None:
    rig.set_policy(server__keep_alive_s=0.5)
    reader, writer = await send(port, build_request(chat_body(stream=True, stop=["-" * 500])))
    await until(lambda: rig.admission.in_flight == 1)
    rig.engine.say(rig.engine.only, "text")
    seen = b""
    while seen.count(b": keep-alive\n\n") < 2:
        seen += await asyncio.wait_for(reader.read(1000), 0.9)
        rig.engine.say(rig.engine.only, "-")  # may become the stop, so it is not shown
    assert b'"content":"text"' in seen
    assert b'"content":"-' not in seen
    await hang_up(writer, hard=False)
    await until(lambda: rig.admission.in_flight == 0)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("客户端/1.0".encode(), "客户端/1.0"),
        ("مرحبا".encode(), "مرحبا"),
        ("zwj👩\u200d👧".encode(), "zwj👩\\u200d👧"),
        (b"caf\xe9", "café"),
        (b"esc\x1b[31m", "esc\\x1b[31m"),
    ],
)
async def test_a_client_is_named_as_it_names_itself(
    rig: Any, port: int, chat_body: Any, sent: bytes, shown: str
) -> None:
    body = json.dumps(chat_body()).encode()
    head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: %b\r\nX-Homebase-Session: %b\r\n" % (
        CHAT.encode(),
        sent,
        sent,
    )
    _, writer = await send(port, head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    await until(lambda: rig.admission.in_flight == 1)
    (row,) = rig.streams()
    assert (row.client, row.session) == (shown, shown)
    await hang_up(writer, hard=False)
    await until(lambda: rig.admission.in_flight == 0)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_gets_its_413_through(rig: Any, port: int, chunked: bool) -> None:
    part = b" " * (1024 * 1024)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(LIMIT_BYTES // len(part) + 4):
            yield part

    headers = {} if chunked else {"content-length": str(LIMIT_BYTES + 4 * len(part))}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        answer = await client.post(CHAT, content=parts(), headers=headers)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
    assert f"{LIMIT_BYTES:,}" in answer.json()["error"]["message"]


async def test_a_body_that_never_ends_is_answered_and_let_go(
    rig: Any, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.api.body.read_body.__kwdefaults__", {"stall_s": 0.2, "total_s": 1.0})
    reader, writer = await send(port, build_request(b"{}").replace(b"Content-Length: 2", b"Content-Length: 900"))
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert b" 408 " in answer.splitlines()[0]
    assert b"body_too_slow" in answer
    assert rig.admission.admitted_total == 0


async def test_a_refusal_comes_within_a_tenth_of_a_second(rig: Any, port: int, chat_body: Any) -> None:
    held = [await send(port, build_request(chat_body(stream=True))) for _ in range(2)]
    await until(lambda: rig.admission.in_flight == 2)
    took_s: list[float] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(7):
            start_s = time.monotonic()
            answer = await client.post(CHAT, json=chat_body())
            took_s.append(time.monotonic() - start_s)
            assert answer.status_code == 429
    for _, writer in held:
        await hang_up(writer, hard=False)
    await until(lambda: rig.admission.in_flight == 0)
    # The best of several: the machine that runs the tests may be busy with others.
    assert min(took_s) < 0.1


async def test_a_crowd_that_comes_back_at_once_gets_answers_or_refusals_and_leaves_nothing(
    rig: Any, port: int, chat_body: Any
) -> None:
    async def answer(engine: Any, request: Any) -> None:
        engine.prefill(request.id, 2, 2)
        await asyncio.sleep(0.01)
        if request.id in engine.open:
            engine.say(request.id, "ok")
            engine.end(request.id, "length")

    work: set[asyncio.Task[None]] = set()
    rig.engine.script = lambda engine, request: work.add(asyncio.create_task(answer(engine, request)))
    statuses: list[int] = []

    async def insist(client: httpx.AsyncClient) -> None:
        for _ in range(40):
            statuses.append((await client.post(CHAT, json=chat_body())).status_code)

    async def look(client: httpx.AsyncClient) -> None:
        for _ in range(20):
            assert (await client.get("/health")).status_code == 200

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        await asyncio.gather(*(insist(client) for _ in range(12)), *(look(client) for _ in range(3)))
        assert (await client.post(CHAT, json=chat_body())).status_code == 200
    await asyncio.gather(*work)
    assert set(statuses) == {200, 429}
    assert statuses.count(200) + 1 == rig.admission.admitted_total == len(rig.ends())
    assert statuses.count(429) == len(rig.refusals())
    assert (rig.admission.in_flight, rig.admission.peak_in_flight) == (0, 2)


async def test_two_streams_that_are_dropped_make_room_for_two_new_ones(
    rig: Any, port: int, chat_body: Any, speak: Any
) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        held = [await send(port, build_request(chat_body(stream=True))) for _ in range(2)]
        await until(lambda: rig.admission.in_flight == 2)
        for _, writer in held:
            await hang_up(writer, hard=True)
        await until(lambda: rig.admission.in_flight == 0)
        rig.engine.script = speak("new")
        answers = await asyncio.gather(*(client.post(CHAT, json=chat_body()) for _ in range(2)))
    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == ["new", "new"]
