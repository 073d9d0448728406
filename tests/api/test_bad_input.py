"""Bodies that broke other servers, by the name of the case: each gets the right 4xx, and the next request works."""

from __future__ import annotations

import json
from typing import Any

import pytest

USER = {"role": "user", "content": "hi"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "nano", "messages": [USER], "max_tokens": 8, **fields}).encode()


CASES: dict[str, tuple[bytes, int, str, str | None]] = {
    "malformed_json": (b'{"model": "nano", ', 400, "invalid_request", None),
    "not_object": (b"[1, 2, 3]", 400, "invalid_request", None),
    "empty_body": (b"", 400, "invalid_request", None),
    "bad_utf8": (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', 400, "invalid_request", None),
    "unknown_model": (body(model="no-such-model"), 404, "model_not_found", "model"),
    "no_messages": (b'{"model": "nano"}', 400, "invalid_request", "messages"),
    "empty_messages": (body(messages=[]), 400, "invalid_request", "messages"),
    "messages_str": (body(messages="hi"), 400, "invalid_request", "messages"),
    "nothing_said": (body(messages=[{"role": "system", "content": ""}]), 400, "invalid_request", "messages"),
    "too_long_prompt": (
        body(messages=[{"role": "user", "content": "word " * 5000}]),
        400,
        "context_length_exceeded",
        "messages",
    ),
    "negative_max": (body(max_tokens=-5), 400, "invalid_request", "max_tokens"),
    "zero_max": (body(max_tokens=0), 400, "invalid_request", "max_tokens"),
    "max_str": (body(max_tokens="ten"), 400, "invalid_request", "max_tokens"),
    "huge_max": (body(max_tokens=10**9), 400, "invalid_request", "max_tokens"),
    "temp_str": (body(temperature="hot"), 400, "invalid_request", "temperature"),
    "temp_nan": (body(temperature=float("nan")), 400, "invalid_request", None),
    "temp_infinite": (body(temperature=float("inf")), 400, "invalid_request", None),
    "temp_neg": (body(temperature=-1), 400, "invalid_request", "temperature"),
    "n_2": (body(n=2), 400, "unsupported_parameter", "n"),
    "unknown_role": (body(messages=[{"role": "wizard", "content": "x"}]), 400, "invalid_request", "messages[0].role"),
    "tool_role_no_id": (
        body(messages=[USER, {"role": "tool", "content": "x"}]),
        400,
        "invalid_request",
        "messages[1].tool_call_id",
    ),
    "content_int": (body(messages=[{"role": "user", "content": 5}]), 400, "invalid_request", "messages[0].content"),
    "content_null": (body(messages=[{"role": "user", "content": None}]), 400, "invalid_request", "messages[0].content"),
    "stop_int": (body(stop=5), 400, "invalid_request", "stop"),
    "stop_list_of_int": (body(stop=[5]), 400, "invalid_request", "stop[0]"),
    "tools_str": (body(tools="x"), 400, "invalid_request", "tools"),
    "stream_str": (body(stream="yes"), 400, "invalid_request", "stream"),
    "resp_format_bad": (body(response_format={"type": "nonsense"}), 400, "invalid_request", "response_format.type"),
    "logprobs_5": (body(logprobs=5), 400, "invalid_request", "logprobs"),
    "top_logprobs_alone": (body(top_logprobs=5), 400, "invalid_request", "top_logprobs"),
    "penalty_out_of_range": (body(frequency_penalty=-2.5), 400, "invalid_request", "frequency_penalty"),
    "logit_bias_too_strong": (body(logit_bias={"5": 101}), 400, "invalid_request", "logit_bias"),
    "seed_huge": (body(seed=2**70), 400, "invalid_request", "seed"),
    "lone_surrogate": (
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        400,
        "invalid_request",
        None,
    ),
    "body_64MB_ignored_field": (body(ignored="x" * 64 * 1024 * 1024), 413, "body_too_large", None),
    "body_10MB_prompt": (
        body(messages=[{"role": "user", "content": "x" * 10 * 1024 * 1024}]),
        400,
        "context_length_exceeded",
        "messages",
    ),
    "logit_bias_out_of_range": (body(logit_bias={"99999999": 5}), 400, "invalid_request", "logit_bias"),
    "top_k_over_vocabulary": (body(top_k=10**9, temperature=1), 400, "invalid_request", "top_k"),
    "deep_nesting": (b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "invalid_request", None),
}


@pytest.mark.parametrize("case", CASES)
async def test_bad_input_is_answered_with_the_right_4xx_and_does_no_harm(
    rig: Any, chat_body: Any, speak: Any, case: str
) -> None:
    data, status, code, param = CASES[case]
    answer = await rig.post(data)
    error = json.loads(await answer.get_data())["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"][0].isupper() or error["message"][0] == "`"
    assert error["message"].rstrip().endswith(".")
    assert len(error["message"]) < 500
    assert not rig.engine.requests
    rig.engine.script = speak("fine")
    assert (await rig.post(chat_body())).status_code == 200
    assert rig.admission.in_flight == 0


@pytest.mark.parametrize(
    "fields",
    [pytest.param({"seed": 7}, id="seed"), {"temperature": 0}, {"stop": []}, {"top_k": 0}, {"max_tokens": 4000}],
)
async def test_good_input_close_to_it_is_taken(rig: Any, speak: Any, fields: dict[str, Any]) -> None:
    rig.engine.script = speak("fine")
    assert (await rig.post(body(**fields))).status_code == 200
