"""Every wrong body gets a sentence that names the field; every harmless one is accepted."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.api.chat.wire import EXPECTED, ChatBody, ContentPart, Message, decode_chat
from server.api.generation.sampling import list_stops
from server.api.generation.unbuilt import UNBUILT
from server.engine.request import Sampling
from server.errors import InvalidRequest, RequestError, UnsupportedParameter

USER = {"role": "user", "content": "hi"}


def decode(**fields: Any) -> ChatBody:
    return decode_chat(json.dumps({"messages": [USER], **fields}).encode())


def check_refused(body: bytes, param: str | None, *words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_chat(body)
    assert caught.value.param == param
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["empty"]),
        (b" \n", ["empty"]),
        (b"{", ["not valid JSON"]),
        (b'{"messages": [], }', ["not valid JSON"]),
        (b"[1, 2]", ["JSON object", "a list"]),
        (b'"text"', ["JSON object", "a string"]),
        (b"null", ["JSON object", "null"]),
        (b'{"messages":[{"role":"user","content":"\xff\xfe"}]}', ["not UTF-8"]),
        ('{"messages":[]}'.encode("utf-16"), ["not UTF-8"]),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', ["surrogate"]),
        (b'{"messages":[{"role":"user","content":"\\udc00 x"}]}', ["surrogate"]),
        (b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}', ["not UTF-8"]),
        (b'{"temperature": NaN}', ["not valid JSON"]),
        (b'{"temperature": -Infinity}', ["not valid JSON"]),
        (b'{"temperature": 1e400}', ["number", "too large"]),
        (b'{"max_tokens": 1' + b"0" * 20000 + b"}", ["number", "too large"]),
        (b'{"messages": ' + b"[" * 100_000, ["nested too deeply"]),
        (b'{"x": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001, ["nested too deeply"]),
    ],
)
def test_a_body_that_is_no_json_object_is_explained(body: bytes, words: list[str]) -> None:
    check_refused(body, None, *words)


def test_a_wrong_content_type_is_mentioned_when_the_body_cannot_be_read() -> None:
    with pytest.raises(InvalidRequest, match=r"application/x-www-form-urlencoded.*application/json"):
        decode_chat(b"messages=hi", "application/x-www-form-urlencoded")
    assert decode_chat(json.dumps({"messages": [USER]}).encode(), "text/plain")


def test_a_byte_order_mark_and_repeated_keys_are_fine() -> None:
    assert decode_chat(b'\xef\xbb\xbf{"messages": 5, "messages": [{"role": "user", "content": "hi"}]}')


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": None}, "messages", ["at least one message", "null was given"]),
        ({"messages": []}, "messages", ["at least one message"]),
        ({"messages": "hi"}, "messages", ['"hi" was given']),
        ({"messages": ["hi"]}, "messages[0]", ["an object with a role"]),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role", ["missing", "system, developer, user"]),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", ['"wizard" was given']),
        ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role", ["5 was given"]),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", ["list of text parts"]),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content", ["an empty object was given"]),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]", ["text"]),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type", ["missing"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
            ["a string"],
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]},
            "messages[0].tool_calls[0].function.name",
            ["missing"],
        ),
        ({"model": 5}, "model", ["a string"]),
        ({"stream": "yes"}, "stream", ["true or false", '"yes" was given']),
        ({"stream": 1}, "stream", ["true or false"]),
        ({"stream_options": True}, "stream_options", ["include_usage"]),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage", ["true or false"]),
        ({"max_tokens": -1}, "max_tokens", ["at least 1", "-1 was given"]),
        ({"max_tokens": 0}, "max_tokens", ["at least 1"]),
        ({"max_tokens": "5"}, "max_tokens", ["whole number"]),
        ({"max_tokens": 5.5}, "max_tokens", ["whole number"]),
        ({"max_tokens": True}, "max_tokens", ["whole number"]),
        ({"max_completion_tokens": 0}, "max_completion_tokens", ["at least 1"]),
        ({"temperature": "hot"}, "temperature", ["from 0 to 2", '"hot" was given']),
        ({"temperature": -0.1}, "temperature", ["from 0 to 2"]),
        ({"temperature": 2.1}, "temperature", ["from 0 to 2", "2.1 was given"]),
        ({"temperature": True}, "temperature", ["a number"]),
        ({"top_p": 0}, "top_p", ["above 0"]),
        ({"top_p": 1.5}, "top_p", ["at most 1"]),
        ({"top_k": -2}, "top_k", ["keep all"]),
        ({"min_p": 1.1}, "min_p", ["from 0 to 1"]),
        ({"seed": 2**70}, "seed", ["9223372036854775807", "a huge number was given"]),
        ({"seed": -1}, "seed", ["from 0"]),
        ({"seed": "x"}, "seed", ["whole number"]),
        ({"frequency_penalty": 2.1}, "frequency_penalty", ["from -2 to 2", "2.1 was given"]),
        ({"frequency_penalty": "much"}, "frequency_penalty", ["a number", '"much" was given']),
        ({"presence_penalty": -2.1}, "presence_penalty", ["from -2 to 2"]),
        ({"presence_penalty": False}, "presence_penalty", ["a number"]),
        ({"repetition_penalty": 0}, "repetition_penalty", ["above 0 and at most 2", "0 was given"]),
        ({"repetition_penalty": 2.1}, "repetition_penalty", ["above 0 and at most 2"]),
        ({"repeat_penalty": -1}, "repeat_penalty", ["above 0 and at most 2"]),
        ({"logit_bias": [5]}, "logit_bias", ["an object from token ids", "a list was given"]),
        ({"logprobs": 5}, "logprobs", ["true or false", "5 was given"]),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["from 0 to 20", "21 was given"]),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", ["from 0 to 20"]),
        ({"logprobs": True, "top_logprobs": False}, "top_logprobs", ["a whole number"]),
        ({"top_logprobs": 5}, "top_logprobs", ["`logprobs`: true", "5 was given", "leave `top_logprobs` out"]),
        ({"logprobs": False, "top_logprobs": 5}, "top_logprobs", ["`logprobs`: true"]),
        ({"stop": 5}, "stop", ["a string or a list"]),
        ({"stop": ["a", 5]}, "stop[1]", ["a string"]),
        ({"stop": ""}, "stop", ["1 to 512"]),
        ({"stop": ["a", ""]}, "stop[1]", ["1 to 512"]),
        ({"stop": ["x"] * 17}, "stop", ["at most 16"]),
        ({"stop": "x" * 513}, "stop", ["1 to 512"]),
        ({"n": "1"}, "n", ["whole number"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_it_may_be(
    fields: dict[str, Any], param: str, words: list[str]
) -> None:
    check_refused(json.dumps({"messages": [USER], **fields}).encode(), param, *words)


def test_missing_messages_are_named() -> None:
    check_refused(b"{}", "messages", "missing")


@pytest.mark.parametrize("n", [0, 2, -1, 10**30])
def test_only_one_choice_is_given(n: int) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        decode(n=n)
    assert caught.value.param == "n"


ASKING: dict[str, list[Any]] = {
    "functions": [[{"name": "f"}]],
    "function_call": [{"name": "f"}],
    "audio": [{"voice": "x"}],
    "modalities": [["text", "audio"]],
    "prediction": [{"type": "content"}],
    "web_search_options": [{}],
    "verbosity": ["high"],
    "best_of": [2],
    "min_tokens": [5],
    "ignore_eos": [True],
    "stop_token_ids": [[1]],
    "typical_p": [0.5],
    "xtc_probability": [0.5],
    "structured_outputs": [{}],
    "guided_json": [{}],
    "guided_regex": ["a"],
    "guided_choice": [["a"]],
    "guided_grammar": ["a"],
    "grammar": ["root ::= 1"],
    "json_schema": [{"type": "object"}],
}
NEUTRAL: dict[str, list[Any]] = {
    "functions": [[]],
    "function_call": ["none", "auto"],
    "modalities": [["text"]],
}


@pytest.mark.parametrize("name", UNBUILT)
def test_what_is_not_built_is_refused_by_name_and_accepted_when_it_asks_nothing(name: str) -> None:
    for value in ASKING[name]:
        with pytest.raises(UnsupportedParameter) as caught:
            decode(**{name: value})
        assert caught.value.param == name
        assert name in caught.value.message
    for value in [None, *NEUTRAL.get(name, [])]:
        assert decode(**{name: value})


def test_harmless_and_unknown_fields_are_accepted_and_the_unknown_ones_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "server.api.decoding"):
        decode(user="me", metadata={"a": "b"}, store=True, service_tier="auto", parallel_tool_calls=True, surprise=1)
    assert [record.getMessage() for record in caplog.records] == ["fields without effect in a request: 'surprise'"]


def test_null_means_left_out() -> None:
    names = set(ChatBody.__struct_fields__) - {"messages"}
    assert decode(**dict.fromkeys(names)) == decode()


def test_every_field_that_can_be_wrong_has_its_words() -> None:
    for struct, prefix in ((ChatBody, ""), (Message, "messages[]."), (ContentPart, "messages[].content[].")):
        for name in struct.__struct_fields__:
            assert f"{prefix}{name}" in EXPECTED


def test_the_newer_name_for_the_output_limit_wins() -> None:
    assert decode(max_tokens=5).asked_max_tokens == 5
    assert decode(max_completion_tokens=5).asked_max_tokens == 5
    both = decode(max_tokens=500, max_completion_tokens=5)
    assert (both.asked_max_tokens, both.max_tokens_name) == (5, "max_completion_tokens")
    assert decode().asked_max_tokens is None


@pytest.mark.parametrize(("stop", "stops"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_a_stop_is_a_string_or_a_list(stop: Any, stops: tuple[str, ...]) -> None:
    assert list_stops(decode(stop=stop).stop) == stops


def test_sampling_takes_what_was_said_and_openais_defaults() -> None:
    assert decode().build_sampling(100) == Sampling(1.0, 1.0, 0, 0.0, None)
    said = decode(temperature=0, top_p=0.5, top_k=100, min_p=0.1, seed=2**63 - 1)
    assert said.build_sampling(100) == Sampling(0.0, 0.5, 100, 0.1, 2**63 - 1)
    assert decode(top_k=-1).build_sampling(100).top_k == 0


def test_penalties_and_bias_reach_the_sampling() -> None:
    said = decode(frequency_penalty=-2, presence_penalty=0.5, repetition_penalty=1.1, logit_bias={"99": 100, "5": -0.5})
    assert said.build_sampling(100) == Sampling(
        frequency_penalty=-2.0,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias=((5, -0.5), (99, 100.0)),
    )


def test_the_repetition_penalty_has_a_second_name_that_yields() -> None:
    assert decode(repeat_penalty=1.2).build_sampling(100).repetition_penalty == 1.2
    assert decode(repeat_penalty=1.2, repetition_penalty=0.9).build_sampling(100).repetition_penalty == 0.9


def test_what_asks_for_no_penalty_bias_or_score_changes_nothing() -> None:
    neutral = decode(
        frequency_penalty=0, presence_penalty=0.0, repetition_penalty=1, logit_bias={}, logprobs=False, top_logprobs=0
    )
    assert neutral.build_sampling(100) == Sampling()
    assert neutral.wanted_logprobs is None


@pytest.mark.parametrize(("fields", "wanted"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 20}, 20)])
def test_logprobs_come_alone_or_with_alternatives(fields: dict[str, Any], wanted: int) -> None:
    assert decode(logprobs=True, **fields).wanted_logprobs == wanted


@pytest.mark.parametrize("top_k", [101, 10**9, 2**70])
def test_a_top_k_beyond_the_vocabulary_never_reaches_the_engine(top_k: int) -> None:
    with pytest.raises(InvalidRequest, match="from 0") as caught:
        decode(top_k=top_k).build_sampling(100)
    assert caught.value.param == "top_k"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from([*ChatBody.__struct_fields__, *UNBUILT])


@settings(deadline=None)
@given(st.dictionaries(fields, json_values, max_size=8))
def test_whatever_json_comes_the_answer_is_a_request_or_a_request_error(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode("utf-8", "surrogatepass")
    with contextlib.suppress(RequestError):
        assert decode_chat(body).messages
