from __future__ import annotations

import asyncio

import pytest

from server.api.body import LIMIT_BYTES, BoundedBody, drain_body, read_body
from server.errors import BodyTooLarge, BodyTooSlow


async def test_a_body_is_read_to_its_end() -> None:
    body = BoundedBody(None, LIMIT_BYTES)

    async def arrive() -> None:
        for part in (b"ab", b"cd"):
            body.append(part)
            await asyncio.sleep(0)
        body.set_complete()

    task = asyncio.create_task(arrive())
    assert await read_body(body) == b"abcd"
    await task
    assert not body.may_be_coming


async def test_a_length_over_the_limit_is_refused_before_a_byte_is_read() -> None:
    with pytest.raises(BodyTooLarge, match=f"{LIMIT_BYTES + 1:,}"):
        await read_body(BoundedBody(LIMIT_BYTES + 1, LIMIT_BYTES))


async def test_a_body_without_a_length_is_counted() -> None:
    body = BoundedBody(None, LIMIT_BYTES)

    async def arrive() -> None:
        while True:
            body.append(b" " * 1_000_000)
            await asyncio.sleep(0)

    task = asyncio.create_task(arrive())
    with pytest.raises(BodyTooLarge):
        await read_body(body)
    assert LIMIT_BYTES < body.arrived_bytes < LIMIT_BYTES + 3_000_000
    await asyncio.sleep(0.01)
    assert body.arrived_bytes > LIMIT_BYTES + 3_000_000
    assert len(body._data) == 0, "what comes after the limit is not kept"
    task.cancel()


async def test_a_last_part_that_is_one_too_many_is_not_dropped_in_silence() -> None:
    body = BoundedBody(None, LIMIT_BYTES)

    async def arrive() -> None:
        body.append(b"{}" + b" " * (LIMIT_BYTES - 2))
        await asyncio.sleep(0.01)
        body.append(b"x")
        body.set_complete()

    task = asyncio.create_task(arrive())
    with pytest.raises(BodyTooLarge):
        await read_body(body)
    await task


async def test_a_body_that_stalls_is_given_up() -> None:
    body = BoundedBody(10, LIMIT_BYTES)
    body.append(b"abc")
    with pytest.raises(BodyTooSlow, match=r"nothing came for 0\.02 s after 3 bytes"):
        await read_body(body, stall_s=0.02, total_s=5)


async def test_a_body_that_trickles_for_ever_is_given_up() -> None:
    body = BoundedBody(None, LIMIT_BYTES)

    async def trickle() -> None:
        while True:
            body.append(b"a")
            await asyncio.sleep(0.005)

    task = asyncio.create_task(trickle())
    with pytest.raises(BodyTooSlow, match=r"bytes came in 0\.1 s"):
        await read_body(body, stall_s=1, total_s=0.1)
    task.cancel()


async def test_the_rest_of_a_refused_body_is_let_in_and_thrown_away() -> None:
    body = BoundedBody(300_000, LIMIT_BYTES)

    async def arrive() -> None:
        for _ in range(3):
            body.append(b" " * 100_000)
            await asyncio.sleep(0.03)

    task = asyncio.create_task(arrive())
    await drain_body(body)
    assert body.arrived_bytes == 300_000
    await task


async def test_draining_ends_when_nothing_more_comes() -> None:
    body = BoundedBody(300_000, LIMIT_BYTES)
    await asyncio.wait_for(drain_body(body, drain_s=5, quiet_s=0.05), 1)


async def test_a_request_without_a_body_has_none_coming() -> None:
    assert not BoundedBody(None, LIMIT_BYTES).may_be_coming
    assert not BoundedBody(0, LIMIT_BYTES).may_be_coming


async def test_a_body_that_arrived_whole_is_not_waited_for_though_nobody_read_it() -> None:
    body = BoundedBody(None, LIMIT_BYTES)
    body.append(b"abc")
    assert body.may_be_coming
    body.set_complete()
    assert not body.may_be_coming
