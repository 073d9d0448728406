"""Tokenizing and back through the whole application, with a codec of one token per byte."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from server.api.generation import door


async def ask(rig: Any, path: str, fields: Any) -> tuple[int, Any]:
    answer = await rig.post(fields, path=path)
    return answer.status_code, json.loads(await answer.get_data())


@pytest.mark.parametrize("name", ["prompt", "content"])
async def test_a_text_and_its_tokens(rig: Any, name: str) -> None:
    status, body = await ask(rig, "/tokenize", {"model": "nano", name: "hě", "return_token_strs": True})
    assert status == 200
    assert body == {
        "count": 3,
        "max_model_len": 4096,
        "tokens": list("hě".encode()),
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }
    assert await ask(rig, "/detokenize", {"tokens": body["tokens"]}) == (200, {"prompt": "hě"})


async def test_a_conversation_is_what_a_chat_request_would_have_for_its_prompt(rig: Any, speak: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "developer", "content": "be kind"}]
    _, body = await ask(rig, "/tokenize", {"messages": messages})
    rig.engine.script = speak("x")
    await rig.post({"messages": messages})
    (request,) = rig.engine.requests.values()
    assert tuple(body["tokens"]) == request.prompt_ids


async def test_a_text_longer_than_the_context_limit_is_counted_all_the_same(rig: Any) -> None:
    _, body = await ask(rig, "/tokenize", {"prompt": "x" * 5000})
    assert (body["count"], body["max_model_len"]) == (5000, 4096)


COUNTS = [
    ("/tokenize", "prompt", {"prompt": "x" * 40}),
    ("/tokenize", "messages", {"messages": [{"role": "user", "content": "x" * 40}]}),
    ("/v1/messages/count_tokens", "messages", {"model": "nano", "messages": [{"role": "user", "content": "x" * 40}]}),
    ("/v1/responses/input_tokens", "input", {"model": "nano", "input": "x" * 40}),
]
"""Every way to have a prompt counted."""


@pytest.mark.parametrize(("path", "param", "fields"), COUNTS)
async def test_a_text_far_too_long_is_not_counted(
    rig: Any, monkeypatch: pytest.MonkeyPatch, path: str, param: str, fields: Any
) -> None:
    monkeypatch.setattr(door, "COUNT_CHARS_PER_TOKEN", 0)
    monkeypatch.setattr(door, "COUNT_CHARS", 40)
    assert (await ask(rig, path, fields))[0] == 200
    monkeypatch.setattr(door, "COUNT_CHARS", 39)
    status, body = await ask(rig, path, fields)
    assert status == 400
    assert "At most 39 characters are tokenized for a count; this prompt has 40." in body["error"]["message"]
    assert param in (body["error"].get("param"), body["error"].get("details", {}).get("param"))
    monkeypatch.setattr(door, "COUNT_CHARS_PER_TOKEN", 1)
    assert (await ask(rig, path, fields))[0] == 200


async def test_counts_that_take_long_hold_up_no_answer(rig: Any, speak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, count = threading.Event(), rig.codec.encode_text

    def encode(text: str, *limits: Any, **others: Any) -> tuple[int, ...]:
        if text == "long":
            gate.wait(20)
        return count(text, *limits, **others)

    monkeypatch.setattr(rig.codec, "encode_text", encode)
    rig.engine.script = speak("x")
    counts = [asyncio.create_task(ask(rig, "/tokenize", {"prompt": "long"})) for _ in range(4)]
    await asyncio.sleep(0.02)
    assert (await ask(rig, "/v1/completions", {"model": "nano", "prompt": "hi"}))[0] == 200
    assert not any(task.done() for task in counts)
    gate.set()
    assert [status for status, _ in await asyncio.gather(*counts)] == [200] * 4


async def test_no_slot_is_taken_and_none_is_needed(rig: Any) -> None:
    rig.set_policy(policy__max_in_flight=1)
    async with rig.client.request("/v1/chat/completions", method="POST") as held:
        await held.send(b'{"messages": [{"role": "user", "content": "a"}], "stream": true}')
        await held.send_complete()
        await rig.until(lambda: rig.admission.in_flight == 1)
        assert (await ask(rig, "/tokenize", {"prompt": "abc"}))[0] == 200
        assert (await ask(rig, "/detokenize", {"tokens": [97]}))[0] == 200
        assert rig.refusals() == []
        await held.disconnect()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model"),
    ],
)
async def test_a_fault_is_named(rig: Any, path: str, fields: Any, param: str) -> None:
    status, body = await ask(rig, path, fields)
    assert status in (400, 404)
    assert body["error"]["param"] == param
