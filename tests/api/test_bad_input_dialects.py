"""The bodies that broke other servers, in the other dialects: each gets the right 4xx, and the next request works."""

from __future__ import annotations

import json
from typing import Any

import pytest

USER = {"role": "user", "content": "hi"}
PATHS = {"completions": "/v1/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
GOOD: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "hi", "max_tokens": 8},
    "responses": {"input": "hi", "max_output_tokens": 8},
    "messages": {"messages": [USER], "max_tokens": 8},
}
LENGTH = {"completions": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
PROMPT = {"completions": "prompt", "responses": "input", "messages": "messages"}
LONG_TEXT = "word " * 5000

Row = tuple[bytes, int, str, str | None]


def body(dialect: str, **fields: Any) -> bytes:
    return json.dumps({"model": "nano", **GOOD[dialect], **fields}).encode()


def say(dialect: str, text: str) -> Any:
    """A text as the dialect's prompt."""
    return [{"role": "user", "content": text}] if dialect == "messages" else text


def but(dialect: str, param: str, value: Any, named: str = "", code: str = "invalid_request") -> Row:
    """A good body but for one field, which the answer names."""
    return body(dialect, **{param: value}), 400, code, named or param


def build_shared_rows(dialect: str) -> dict[str, Row]:
    """The rows that are the same in every dialect, but for what the prompt and the length are called."""
    length, prompt = LENGTH[dialect], PROMPT[dialect]
    escaped = json.dumps(say(dialect, "HERE"))
    return {
        "malformed_json": (b'{"model": "nano", ', 400, "invalid_request", None),
        "not_object": (b"[1, 2, 3]", 400, "invalid_request", None),
        "empty_body": (b"", 400, "invalid_request", None),
        "bad_utf8": (b'{"%s": "\xff\xfe"}' % prompt.encode(), 400, "invalid_request", None),
        "lone_surrogate": (
            f'{{"{prompt}": {escaped.replace("HERE", chr(92) + "ud800")}}}'.encode(),
            400,
            "invalid_request",
            None,
        ),
        "unknown_model": (body(dialect, model="no-such-model"), 404, "model_not_found", "model"),
        "no_messages": (b'{"model": "nano", "%s": 8}' % length.encode(), 400, "invalid_request", prompt),
        "empty_messages": but(dialect, prompt, []),
        "messages_int": but(dialect, prompt, 5),
        "too_long_prompt": but(dialect, prompt, say(dialect, LONG_TEXT), code="context_length_exceeded"),
        "body_10MB_prompt": but(dialect, prompt, say(dialect, "x" * 10 * 2**20), code="context_length_exceeded"),
        "body_64MB_ignored_field": (body(dialect, ignored="x" * 64 * 2**20), 413, "body_too_large", None),
        "deep_nesting": (b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "invalid_request", None),
        "negative_max": but(dialect, length, -5),
        "zero_max": but(dialect, length, 0),
        "max_str": but(dialect, length, "ten"),
        "temp_str": but(dialect, "temperature", "hot"),
        "temp_neg": but(dialect, "temperature", -1),
        "temp_nan": (body(dialect, temperature=float("nan")), 400, "invalid_request", None),
        "temp_infinite": (body(dialect, temperature=float("inf")), 400, "invalid_request", None),
        "stream_str": but(dialect, "stream", "yes"),
        "seed_huge": but(dialect, "seed", 2**70),
        "logit_bias_out_of_range": but(dialect, "logit_bias", {"99999999": 5}),
        "logit_bias_too_strong": but(dialect, "logit_bias", {"5": 101}),
        "top_k_over_vocabulary": but(dialect, "top_k", 10**9),
        "penalty_out_of_range": but(dialect, "frequency_penalty", -2.5),
    }


OWN_ROWS: dict[str, dict[str, Row]] = {
    "completions": {
        "huge_max": but("completions", "max_tokens", 10**9),
        "n_2": but("completions", "n", 2, code="unsupported_parameter"),
        "content_int": but("completions", "prompt", ["hi", 5], code="unsupported_parameter"),
        "content_null": but("completions", "prompt", None),
        "stop_int": but("completions", "stop", 5),
        "stop_list_of_int": but("completions", "stop", [5], "stop[0]"),
        "logprobs_true": but("completions", "logprobs", True),
        "logprobs_25": but("completions", "logprobs", 25),
        "token_false": but("completions", "prompt", [False, 6, 7], "prompt[0]"),
        "token_out_of_range": but("completions", "prompt", [99_999_999]),
        "token_negative": but("completions", "prompt", [-1]),
    },
    "responses": {
        "huge_max": but("responses", "max_output_tokens", 10**9),
        "unknown_role": but("responses", "input", [{"role": "wizard", "content": "x"}], "input[0].role"),
        "nothing_said": but("responses", "input", [{"role": "system", "content": ""}]),
        "content_int": but("responses", "input", [{"role": "user", "content": 5}], "input[0].content"),
        "content_null": but("responses", "input", [{"role": "user", "content": None}], "input[0].content"),
        "stop_int": but("responses", "stop", 5),
        "stop_list_of_int": but("responses", "stop", [5], "stop[0]"),
        "tools_str": but("responses", "tools", "x"),
        "resp_format_bad": but("responses", "text", {"format": {"type": "nonsense"}}, "text.format.type"),
        "logprobs_25": but("responses", "top_logprobs", 25),
    },
    "messages": {
        "unknown_role": but("messages", "messages", [{"role": "wizard", "content": "x"}], "messages[0].role"),
        "tool_role_no_id": but(
            "messages",
            "messages",
            [USER, {"role": "user", "content": [{"type": "tool_result", "content": "x"}]}],
            "messages[1].content[0].tool_use_id",
        ),
        "content_int": but("messages", "messages", [{"role": "user", "content": 5}], "messages[0].content"),
        "content_null": but("messages", "messages", [{"role": "user", "content": None}], "messages[0].content"),
        "messages_str": but("messages", "messages", "hi"),
        "nothing_said": but("messages", "messages", [{"role": "system", "content": []}]),
        "stop_int": but("messages", "stop_sequences", 5),
        "stop_list_of_int": but("messages", "stop_sequences", [5], "stop_sequences[0]"),
        "tools_str": but("messages", "tools", "x"),
        "resp_format_bad": but(
            "messages", "output_config", {"format": {"type": "nonsense"}}, "output_config.format.type"
        ),
    },
}
ROWS = {dialect: build_shared_rows(dialect) | OWN_ROWS[dialect] for dialect in PATHS}


def read_error(dialect: str, document: Any) -> tuple[str, str | None, str]:
    """Code, field and sentence of an error, whose object has the dialect's shape."""
    error = document["error"]
    if dialect != "messages":
        assert set(error) == {"message", "type", "param", "code"}
        return error["code"], error["param"], error["message"]
    assert document["type"] == "error"
    return error["details"]["error_code"], error["details"].get("param"), error["message"]


@pytest.mark.parametrize(("dialect", "case"), [(dialect, case) for dialect, rows in ROWS.items() for case in rows])
async def test_bad_input_is_answered_with_the_right_4xx_and_does_no_harm(
    rig: Any, speak: Any, dialect: str, case: str
) -> None:
    rig.engine.script = speak("fine")
    data, status, code, param = ROWS[dialect][case]
    answer = await rig.post(data, path=PATHS[dialect])
    given = read_error(dialect, json.loads(await answer.get_data()))
    assert (answer.status_code, *given[:2]) == (status, code, param)
    assert 0 < len(given[2]) < 500
    assert not rig.engine.requests
    assert (await rig.post(body(dialect), path=PATHS[dialect])).status_code == 200
    assert rig.admission.in_flight == 0


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        pytest.param("messages", {"max_tokens": 10**9}, id="messages-huge_max"),
        pytest.param(
            "responses", {"input": [{"type": "function_call_output", "output": "x"}]}, id="responses-tool_role_no_id"
        ),
    ],
)
async def test_what_a_dialects_own_clients_send_is_taken(
    rig: Any, speak: Any, dialect: str, fields: dict[str, Any]
) -> None:
    """Claude Code asks for more tokens than a small model has; items need no id where they stand beside their call."""
    rig.engine.script = speak("fine")
    assert (await rig.post(body(dialect, **fields), path=PATHS[dialect])).status_code == 200


@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("fields", [{"seed": 7}, {"temperature": 0}, {"top_k": 0}, {"logit_bias": {"5": 100}}])
async def test_good_input_close_to_it_is_taken(rig: Any, speak: Any, dialect: str, fields: dict[str, Any]) -> None:
    rig.engine.script = speak("fine")
    assert (await rig.post(body(dialect, **fields), path=PATHS[dialect])).status_code == 200
