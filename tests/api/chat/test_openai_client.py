"""The official Python client against the application behind the real server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest


@pytest.fixture
async def client(port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        yield client


async def test_it_completes(rig: Any, client: openai.AsyncOpenAI, speak: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    answer = await client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "Hello wörld"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.model == "org/nano"
    assert rig.ends()[0].client.startswith("AsyncOpenAI/Python")


async def test_it_streams_with_comments_in_between_and_usage_at_the_end(rig: Any, client: openai.AsyncOpenAI) -> None:
    rig.set_policy(server__keep_alive_s=0.5)
    stream = await client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    await rig.until(lambda: rig.engine.open)
    request_id = rig.engine.only
    texts: list[str] = []
    usages = 0
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.role:
            start_s = time.monotonic()
            while time.monotonic() - start_s < 0.7:
                await rig.settle()
            rig.engine.say(request_id, "Hello")
            rig.engine.end(request_id, "length")
        texts += [choice.delta.content or "" for choice in chunk.choices]
        usages += chunk.usage is not None
    assert "".join(texts) == "Hello"
    assert usages == 1


async def test_it_reads_logprobs_whole_and_streamed(client: openai.AsyncOpenAI, rig: Any, speak: Any) -> None:
    rig.engine.script = speak("Hě", "y")
    asked: Any = {
        "model": "nano",
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "logit_bias": {"5": -100},
        "extra_body": {"repetition_penalty": 1.1},
    }
    whole = (await client.chat.completions.create(**asked)).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert bytes(byte for entry in whole.content for byte in entry.bytes or []).decode() == "Hěy"
    assert [len(entry.top_logprobs) for entry in whole.content] == [2] * 4
    assert whole.content[0].top_logprobs[1].logprob == -9999.0
    streamed = [
        entry
        async for chunk in await client.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content or []
    ]
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in whole.content]


async def test_a_refusal_is_raised_at_once_in_words_that_a_person_understands(
    rig: Any, client: openai.AsyncOpenAI, speak: Any
) -> None:
    rig.set_policy(policy__max_in_flight=1)
    held = await client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "hi"}], stream=True)
    start_s = time.monotonic()
    with pytest.raises(openai.RateLimitError, match="1 of 1 in flight") as caught:
        await client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "hi"}])
    assert time.monotonic() - start_s < 0.5
    assert caught.value.code == "in_flight_full"
    assert len(rig.refusals()) == 1, "the client came back by itself"
    await held.close()
    await rig.until(lambda: rig.admission.in_flight == 0)


async def test_faults_have_the_clients_own_classes(rig: Any, client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError, match="available: 'org/nano'"):
        await client.chat.completions.create(model="gpt-4o", messages=messages)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.chat.completions.create(model="nano", messages=messages, temperature=9)
    with pytest.raises(openai.BadRequestError, match="top_logprobs"):
        await client.chat.completions.create(model="nano", messages=messages, top_logprobs=2)
    rig.set_policy(server__api_key="k")
    with pytest.raises(openai.AuthenticationError):
        await client.models.list()


async def test_a_failure_midway_is_raised_once(rig: Any, client: openai.AsyncOpenAI) -> None:
    def break_down(engine: Any, request: Any) -> None:
        engine.say(request.id, "ab")
        engine.end(request.id, "failed", "Its scores are not numbers.")

    rig.engine.script = break_down
    stream = await client.chat.completions.create(
        model="nano", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="not numbers"):
        async for _ in stream:
            pass
    assert len(rig.engine.requests) == 1


async def test_it_lists_and_finds_models(client: openai.AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [model.id for model in models] == ["org/nano"]
    assert (await client.models.retrieve("nano")).id == "org/nano"


async def test_other_methods_work_over_the_wire(rig: Any, port: int) -> None:
    rig.set_policy(server__allowed_origins=("http://localhost:3000",))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        head = await http.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        preflight = await http.options(
            "/v1/chat/completions",
            headers={"origin": "http://localhost:3000", "access-control-request-method": "POST"},
        )
        assert (preflight.status_code, preflight.content) == (204, b"")
        assert (await http.get("/v1/models")).headers.get_list("server") == ["homebase-console"]
