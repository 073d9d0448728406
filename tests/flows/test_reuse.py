"""The second turn of a chat, through the API and with the embedded model: what was computed before is not again."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from server.core import Core
from server.events import EventRing
from server.policy_store import PolicyStore

SYSTEM = " ".join(f"Rule {number}: value {number * 7 % 1013} goes first." for number in range(40))


class Chat:
    """A server in this process, and one client of it."""

    def __init__(self, folder: Path, disk_gib: float) -> None:
        overrides: Any = {"engine.prefix_cache_gib": (0.5, "test"), "engine.prefix_cache_disk_gib": (disk_gib, "test")}
        store = PolicyStore(folder / "homebase.toml", b"", overrides)
        store.load()
        self.core = Core(store, EventRing(), lambda snapshot: None)
        self._client = self.core.build_app().test_client()

    async def ask(self, messages: list[dict[str, str]], max_tokens: int = 16) -> tuple[str, dict[str, Any]]:
        """The reply and the usage."""
        body = {"model": "nano", "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        response = await self._client.post("/v1/chat/completions", json=body)
        answer = json.loads(await response.get_data())
        assert response.status_code == 200, answer
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        return answer["choices"][0]["message"]["content"], usage

    async def ask_and_leave(self, messages: list[dict[str, str]], phase: str) -> None:
        """Ask, and have the stream stopped once it is in this phase."""
        body = {"model": "nano", "messages": messages, "max_tokens": 2000, "temperature": 0}
        asked = asyncio.ensure_future(self._client.post("/v1/chat/completions", json=body))
        async with asyncio.timeout(60):
            while not (running := [s for s in self.core.build_snapshot().streams if s.phase == phase]):  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # no event tells of a phase
        assert self.core.stop_stream(running[0].id)
        await asked


ChatMaker = Callable[..., Any]


@pytest.fixture
async def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatMaker]:
    """Starts a server; the one before it is stopped."""
    monkeypatch.setattr("server.engine.prefix.store.find_root", lambda: tmp_path / "prefix")
    running: list[Chat] = []

    async def stop() -> None:
        if running:
            assert await running.pop().core.stop_engine(20)

    async def start(disk_gib: float = 0.0) -> Chat:
        await stop()
        running.append(Chat(tmp_path, disk_gib))
        await running[-1].core.load()
        return running[-1]

    yield start
    await stop()
    gc.unfreeze()


def talk(*turns: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    said = [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]
    return [{"role": "system", "content": SYSTEM}, *said]


def read_cached(usage: dict[str, Any]) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


async def test_the_second_turn_reuses_the_first(serve: ChatMaker) -> None:
    chat = await serve()
    reply, first = await chat.ask(talk("What goes first?"))
    assert read_cached(first) == 0
    _, second = await chat.ask(talk("What goes first?", reply, "And then?"))
    assert read_cached(second) >= 0.95 * first["prompt_tokens"]
    stream = chat.core.build_snapshot().streams[-1]
    assert stream.cached_tokens == read_cached(second)
    assert stream.diverged_at is not None
    assert f"parts from what is cached at token {stream.diverged_at:,}" in stream.reuse
    _, changed = await chat.ask([{"role": "system", "content": "x" + SYSTEM}, {"role": "user", "content": "And then?"}])
    assert read_cached(changed) == 0
    assert chat.core.build_snapshot().streams[-1].diverged_at in range(2, 6)  # after <|im_start|>system\n
    memory = chat.core.build_snapshot().memory
    assert 0 < memory.prefix_cache_bytes <= memory.prefix_cache_budget_bytes


async def test_the_second_turn_reuses_the_first_after_a_cancelled_reply(serve: ChatMaker) -> None:
    chat = await serve()
    await chat.ask_and_leave(talk("What goes first?"), "decode")
    _, again = await chat.ask(talk("What goes first?"))
    assert read_cached(again) >= 0.95 * again["prompt_tokens"]
    _, second = await chat.ask(talk("What goes first?", "It was", "And then?"))
    assert read_cached(second) >= 0.95 * again["prompt_tokens"]


async def test_a_prompt_that_is_sent_again_after_a_cancel_in_prefill_goes_on(serve: ChatMaker) -> None:
    chat = await serve()
    long = talk(" ".join(f"Is {number} right?" for number in range(250)))
    await chat.ask_and_leave(long, "prefill")
    _, again = await chat.ask(long, 2)
    assert read_cached(again) > 200


async def test_of_two_equal_prompts_at_once_one_number_is_told_everywhere(serve: ChatMaker) -> None:
    chat = await serve()
    asked = talk(" ".join(f"Is {number} right?" for number in range(150)))
    (_, first), (_, second) = await asyncio.gather(chat.ask(asked, 4), chat.ask(asked, 4))
    streams = chat.core.build_snapshot().streams
    prompt = first["prompt_tokens"]
    assert sorted(stream.cached_tokens for stream in streams) == sorted(map(read_cached, (first, second)))
    shared = max(streams, key=lambda stream: stream.cached_tokens)
    assert shared.cached_tokens == prompt - 1
    assert (shared.diverged_at, shared.prefill_tps) == (None, None)
    assert shared.reuse == f"{prompt - 1:,} of {prompt:,} tokens: another stream computed them"


async def test_a_child_shares_its_parents_system_prompt(serve: ChatMaker) -> None:
    chat = await serve()
    _, parent = await chat.ask(talk("What goes first?"))
    _, child = await chat.ask(talk("Write a summary of the rules."))
    assert read_cached(child) >= 0.9 * parent["prompt_tokens"]


async def test_the_second_turn_reuses_the_first_after_a_restart(serve: ChatMaker) -> None:
    reply, first = await (await serve(1.0)).ask(talk("What goes first?"))
    chat = await serve(1.0)
    _, second = await chat.ask(talk("What goes first?", reply, "And then?"))
    assert read_cached(second) >= 0.95 * first["prompt_tokens"]
    assert chat.core.build_snapshot().memory.prefix_cache_disk_bytes > 0
