"""Watching: what an editor does to the file is in force soon, whatever way it saves."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from server.policy_file import watch as policy_watch
from server.policy_store import PolicyState, PolicyStore

TEXT = "[policy]\nmax_in_flight = 2 # c\n"
SOON_S = 10.0
"""Generous for a busy machine; a change is normally seen within a quarter of a second."""


@asynccontextmanager
async def watching(path: Path) -> AsyncGenerator[PolicyStore]:
    """A loaded store that watches, and that has ended within a second of being told to."""
    store = PolicyStore(path, b"")
    store.load()
    stop = asyncio.Event()
    looks: list[float] = []
    look = store._notice

    async def counted() -> None:
        looks.append(time.monotonic())
        await look()

    store._notice = counted
    task = asyncio.create_task(store.watch(stop))
    for _ in range(100):
        # The first look comes before the watch stands; a touch is noticed only when it does.
        if len(looks) >= (2 if touch(path) else 1):
            break
        await asyncio.sleep(0.1)
    try:
        yield store
    finally:
        stop.set()
        begun = time.monotonic()
        await asyncio.wait_for(task, SOON_S)
        assert time.monotonic() - begun < 1.5


async def until(store: PolicyStore, claim: Callable[[PolicyState], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not claim(store.state):
        assert time.monotonic() < end, store.state
        await asyncio.sleep(0.02)


def holds(value: int) -> Callable[[PolicyState], bool]:
    return lambda state: state.policy.policy.max_in_flight == value and state.problem is None


def write(path: Path, text: str) -> None:
    path.write_text(text)


def touch(path: Path) -> bool:
    there = path.exists()
    if there:
        os.utime(path)
    return there


def remove(path: Path) -> None:
    path.unlink()


def text_with(value: int) -> str:
    return TEXT.replace("= 2", f"= {value}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "homebase.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def no_slow_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the system's notices are left, so a test that passes was told by them."""
    monkeypatch.setattr(policy_watch, "_LOOK_S", 3600.0)


@pytest.mark.usefixtures("no_slow_look")
async def test_writing_in_place_and_renaming_over_are_both_seen(file: Path) -> None:
    async with watching(file) as store:
        write(file, text_with(3))
        await until(store, holds(3))
        for value in (4, 5):
            beside = file.with_name("4913~")
            write(beside, text_with(value))
            os.replace(beside, file)
            await until(store, holds(value))


@pytest.mark.usefixtures("no_slow_look")
async def test_broken_gone_and_back_again(file: Path) -> None:
    async with watching(file) as store:
        write(file, "[policy\n")
        await until(store, lambda state: "homebase.toml:1: " in (state.problem or ""))
        assert store.state.policy.policy.max_in_flight == 2
        remove(file)
        await until(store, lambda state: "is gone" in (state.problem or ""))
        assert store.state.policy.policy.max_in_flight == 2
        write(file, text_with(6))
        await until(store, holds(6))


@pytest.mark.usefixtures("no_slow_look")
async def test_target_of_links_and_bent_links_are_seen(tmp_path: Path) -> None:
    for name in ("here", "dots", "far"):
        (tmp_path / name).mkdir()
    real, other = tmp_path / "far" / "real.toml", tmp_path / "far" / "other.toml"
    write(real, TEXT)
    write(other, text_with(8))
    (tmp_path / "dots" / "middle.toml").symlink_to("../far/real.toml")
    link = tmp_path / "here" / "homebase.toml"
    link.symlink_to("../dots/middle.toml")
    async with watching(link) as store:
        write(real, text_with(3))
        await until(store, holds(3))
        bent = tmp_path / "dots" / "new"
        bent.symlink_to("../far/other.toml")
        os.replace(bent, tmp_path / "dots" / "middle.toml")
        await until(store, holds(8))
        await asyncio.sleep(0.3)
        write(other, text_with(9))
        await until(store, holds(9))


async def test_folder_that_comes_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_watch, "_LOOK_S", 0.1)
    file = tmp_path / "config" / "homebase.toml"
    async with watching(file) as store:
        file.parent.mkdir()
        write(file, text_with(3))
        await until(store, holds(3))


async def test_watching_works_where_the_system_gives_no_notices(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(policy_watch, "awatch", refuse)
    monkeypatch.setattr(policy_watch, "_LOOK_S", 0.1)
    async with watching(file) as store:
        write(file, text_with(3))
        await until(store, holds(3))


async def test_file_emptied_for_a_moment_never_counts_as_all_defaults(file: Path) -> None:
    write(file, text_with(7))
    store = PolicyStore(file, b"")
    store.load()
    for emptied in (lambda: write(file, ""), lambda: remove(file)):
        emptied()
        noticing = asyncio.create_task(store._notice())
        await asyncio.sleep(0.2)
        assert not noticing.done()
        write(file, text_with(8))
        await noticing
        assert holds(8)(store.state)
    write(file, "")
    await store._notice()
    assert holds(2)(store.state)


@pytest.mark.usefixtures("no_slow_look")
async def test_own_saves_are_not_taken_for_an_editors(file: Path) -> None:
    async with watching(file) as store:
        for value in (3, 4, 5):
            state = await asyncio.to_thread(store.edit, {"policy.max_in_flight": value}, store.state.etag)
            await asyncio.sleep(0.3)
            assert store.state is state


async def test_loop_is_never_blocked_by_reading(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PolicyStore(file, b"")
    store.load()
    loop_thread = asyncio.get_running_loop()
    reload = store.reload
    monkeypatch.setattr(store, "reload", lambda: (time.sleep(0.3), reload())[1])
    stop = asyncio.Event()
    task = asyncio.create_task(store.watch(stop))
    longest, last = 0.0, loop_thread.time()
    for _ in range(50):
        await asyncio.sleep(0.01)
        longest, last = max(longest, loop_thread.time() - last), loop_thread.time()
    stop.set()
    await task
    assert longest < 0.25


async def test_cancelling_ends_the_watch(file: Path) -> None:
    store = PolicyStore(file, b"")
    store.load()
    task = asyncio.create_task(store.watch(asyncio.Event()))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, SOON_S)
