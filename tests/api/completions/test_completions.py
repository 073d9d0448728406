"""Completions through the whole application, with a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from openai.types import Completion

PATH = "/v1/completions"


async def ask(rig: Any, fields: Mapping[str, Any]) -> Any:
    return await rig.post({"model": "nano", "prompt": "hi", **fields}, path=PATH)


async def read(answer: Any) -> Any:
    return json.loads(await answer.get_data())


def parse(data: bytes) -> list[Any]:
    blocks = [block.removeprefix("data: ") for block in data.decode().split("\n\n") if block.startswith("data: ")]
    assert blocks[-1] == "[DONE]"
    return [json.loads(block) for block in blocks[:-1]]


async def test_a_text_is_gone_on_from_without_a_template(rig: Any, speak: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    answer = await ask(rig, {"prompt": "<|im_start|> no template"})
    body = await read(answer)
    assert answer.status_code == 200
    (request,) = rig.engine.requests.values()
    assert bytes(request.prompt_ids) == b"<|im_start|> no template"
    assert rig.codec.seen == [], "no template was asked"
    assert body["object"] == "text_completion"
    assert body["id"] == f"cmpl-{answer.headers['x-request-id'].removeprefix('req-')}"
    assert body["model"] == "org/nano"
    assert body["choices"] == [{"text": "Hello wörld", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == 24
    assert Completion.model_validate(body, strict=True)
    assert rig.admission.in_flight == 0


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]], ["hi"], "hi"])
async def test_a_prompt_is_a_text_or_token_ids_also_alone_in_a_list(rig: Any, speak: Any, prompt: Any) -> None:
    rig.engine.script = speak("x")
    assert (await ask(rig, {"prompt": prompt})).status_code == 200
    (request,) = rig.engine.requests.values()
    assert request.prompt_ids == (104, 105)


@pytest.mark.parametrize("prompt", ["hi", [104, 105]])
async def test_echo_puts_the_prompt_in_front(rig: Any, speak: Any, prompt: Any) -> None:
    rig.engine.script = speak(" there")
    body = await read(await ask(rig, {"prompt": prompt, "echo": True}))
    assert body["choices"][0]["text"] == "hi there"
    chunks = parse(await (await ask(rig, {"prompt": prompt, "echo": True, "stream": True})).get_data())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hi there"


async def test_a_stream_says_what_the_whole_one_says(rig: Any, speak: Any) -> None:
    rig.engine.script = speak(*"alpha beta gamma")
    fields = {"stop": ["a gam"], "logprobs": 2}
    whole = await read(await ask(rig, fields))
    streamed = await ask(rig, {**fields, "stream": True, "stream_options": {"include_usage": True}})
    *chunks, usage = parse(await streamed.get_data())
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"] == "alpha bet"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [each for choice in choices if choice["logprobs"] for each in choice["logprobs"][name]]
        assert joined == whole["choices"][0]["logprobs"][name]
    assert whole["choices"][0]["logprobs"]["text_offset"] == list(range(9))
    assert whole["choices"][0]["logprobs"]["tokens"] == list("alpha bet")
    assert whole["choices"][0]["logprobs"]["top_logprobs"][0] == {"a": -0.097, "<end>": -9999.0}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": ""}, "invalid_request", "prompt"),
        ({"prompt": []}, "invalid_request", "prompt"),
        ({"prompt": None}, "invalid_request", "prompt"),
        ({"prompt": 5}, "invalid_request", "prompt"),
        ({"prompt": ["a", "b"]}, "unsupported_parameter", "prompt"),
        ({"prompt": [[1], [2]]}, "unsupported_parameter", "prompt"),
        ({"prompt": [1, "a"]}, "invalid_request", "prompt[1]"),
        ({"prompt": [1, True]}, "invalid_request", "prompt[1]"),
        ({"prompt": [257]}, "invalid_request", "prompt"),
        ({"prompt": [-1]}, "invalid_request", "prompt"),
        ({"prompt": [2**70]}, "invalid_request", "prompt"),
        ({"prompt": "x" * 5000}, "context_length_exceeded", "prompt"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"echo": True, "logprobs": 1}, "unsupported_parameter", "echo"),
        ({"logprobs": 21}, "invalid_request", "logprobs"),
        ({"stop": ["a", ""]}, "invalid_request", "stop[1]"),
        ({"min_tokens": 5}, "unsupported_parameter", "min_tokens"),
        ({"model": "no-such"}, "model_not_found", "model"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(rig: Any, fields: Any, code: str, param: str) -> None:
    answer = await ask(rig, fields)
    error = (await read(answer))["error"]
    assert answer.status_code in (400, 404)
    assert (error["code"], error["param"]) == (code, param)
    assert rig.admission.admitted_total == 0


async def test_harmless_fields_change_nothing(rig: Any, speak: Any) -> None:
    rig.engine.script = speak("x")
    fields = {"suffix": "", "n": 1, "best_of": 1, "user": "me", "echo": False, "logprobs": None, "surprise": 1}
    assert (await ask(rig, fields)).status_code == 200


async def test_the_official_client_reads_it(rig: Any, speak: Any, port: int) -> None:
    rig.engine.script = speak("one ", "two")
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        whole = await client.completions.create(model="nano", prompt="hi", logprobs=1)
        assert whole.choices[0].text == "one two"
        assert whole.choices[0].logprobs is not None
        stream = await client.completions.create(model="nano", prompt="hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "one two"
