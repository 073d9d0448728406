from __future__ import annotations

import asyncio

from server.api.sse import DONE, KEEP_ALIVE, Outbox, build_frame


def test_a_frame_is_one_event() -> None:
    assert build_frame(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert DONE == b"data: [DONE]\n\n"
    assert KEEP_ALIVE.startswith(b":")
    assert KEEP_ALIVE.endswith(b"\n\n")


async def test_waiting_frames_are_taken_together_and_in_order() -> None:
    outbox = Outbox(10)
    outbox.put(b"a")
    outbox.put(b"b")
    assert outbox.unread_bytes == 2
    outbox.close()
    assert [frame async for frame in outbox.take()] == [b"ab"]
    assert outbox.unread_bytes == 0


async def test_how_long_the_oldest_frame_waits_is_known() -> None:
    outbox = Outbox(10)
    assert outbox.unread_s == 0
    outbox.put(b"a")
    await asyncio.sleep(0.03)
    outbox.put(b"b")
    assert 0.03 <= outbox.unread_s < 5
    outbox.close()
    assert [frame async for frame in outbox.take()] == [b"ab"]
    assert outbox.unread_s == 0


async def test_a_taker_waits_for_frames_and_ends_at_the_close() -> None:
    outbox, taken = Outbox(10), list[bytes]()

    async def take() -> None:
        taken.extend([frame async for frame in outbox.take()])

    taker = asyncio.create_task(take())
    await asyncio.sleep(0)
    outbox.put(b"a")
    await asyncio.sleep(0)
    outbox.put(b"b")
    outbox.close()
    await taker
    assert b"".join(taken) == b"ab"


async def test_a_comment_comes_whenever_nothing_else_has_for_so_long() -> None:
    outbox = Outbox(0.02)
    taken: list[bytes] = []
    async for frame in outbox.take():
        taken.append(frame)
        if len(taken) == 3:
            outbox.put(b"text")
        if len(taken) == 5:
            outbox.close()
    assert taken == [KEEP_ALIVE, KEEP_ALIVE, KEEP_ALIVE, b"text", KEEP_ALIVE]
