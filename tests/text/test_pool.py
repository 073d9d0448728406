from __future__ import annotations

import asyncio
import threading

import pytest

from server.text.pool import TextPool


async def test_work_runs_beside_the_loop() -> None:
    pool = TextPool()
    assert await pool.run(threading.get_ident) != threading.get_ident()
    pool.close()


async def test_what_work_raises_reaches_the_caller() -> None:
    pool = TextPool()
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    pool.close()


async def test_work_of_a_caller_that_is_gone_is_never_begun() -> None:
    pool = TextPool(workers=1)
    gate, begun = threading.Event(), threading.Event()
    busy = asyncio.create_task(pool.run(gate.wait))
    waiting = asyncio.create_task(pool.run(begun.set))
    await asyncio.sleep(0.02)
    waiting.cancel()
    await asyncio.sleep(0)
    gate.set()
    await busy
    await pool.run(lambda: None)
    assert not begun.is_set()
    pool.close()


async def test_what_runs_aside_comes_one_after_another_and_leaves_the_threads_to_all_else() -> None:
    pool = TextPool(workers=1)
    gate, begun = threading.Event(), threading.Event()
    first = asyncio.create_task(pool.run_aside(gate.wait))
    second = asyncio.create_task(pool.run_aside(begun.set))
    await asyncio.sleep(0.02)
    assert await pool.run(lambda: 5) == 5
    assert not begun.is_set()
    gate.set()
    await asyncio.gather(first, second)
    pool.close()


async def test_work_aside_of_a_caller_that_is_gone_holds_up_the_next_until_it_is_over() -> None:
    pool = TextPool()
    gate, begun = threading.Event(), threading.Event()
    gone = asyncio.create_task(pool.run_aside(gate.wait))
    await asyncio.sleep(0.02)
    gone.cancel()
    following = asyncio.create_task(pool.run_aside(begun.set))
    await asyncio.sleep(0.02)
    assert not begun.is_set()
    gate.set()
    await following
    pool.close()
