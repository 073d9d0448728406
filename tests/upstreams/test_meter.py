from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.upstreams.meter import LINE_MOST_BYTES, Kind, Lines, Meter, Usage


def read(kind: Kind, *events: Any) -> tuple[Meter, int]:
    meter = Meter(kind)
    data = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return meter, sum(meter.read(b"data: " + each + b"\n\n") for each in data)


def test_chat() -> None:
    meter, tokens = read(
        "chat",
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"reasoning_content": "b"}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9, "prompt_tokens_details": None}},
        b"[DONE]",
    )
    assert (tokens, meter.outcome, meter.usage) == (3, "length", Usage(5, 9, None))


def test_completions() -> None:
    meter, tokens = read("completions", {"choices": [{"text": "a"}]}, {"choices": [{"text": ""}]}, b"[DONE]")
    assert (tokens, meter.outcome, meter.usage) == (1, "stop", Usage())


def test_messages() -> None:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 4, "output_tokens": 1}
    meter, tokens = read(
        "messages",
        {"type": "message_start", "message": {"usage": usage, "stop_reason": None}},
        {"type": "ping"},
        {"type": "content_block_start"},
        {"type": "content_block_delta", "delta": {"text": "a"}},
        {"type": "content_block_delta", "delta": {"partial_json": "b"}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    )
    assert (tokens, meter.outcome, meter.usage) == (2, "length", Usage(27, 7, 20))


@pytest.mark.parametrize(
    ("last", "outcome"),
    [("response.completed", "stop"), ("response.incomplete", "length"), ("response.failed", "failed")],
)
def test_responses(last: str, outcome: str) -> None:
    usage = {"input_tokens": 8, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}
    error = {"code": "x", "message": "their words"} if outcome == "failed" else None
    meter, tokens = read(
        "responses",
        {"type": "response.created", "response": {"id": "resp_9", "object": "response", "error": None}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.function_call_arguments.delta", "delta": "b"},
        {"type": "response.output_text.done", "text": "a"},
        {"type": last, "response": {"id": "resp_9", "usage": usage, "error": error}},
    )
    assert (tokens, meter.outcome, meter.usage, meter.response_id) == (2, outcome, Usage(8, 4, 2), "resp_9")
    assert meter.error == ("their words" if error else "")


@pytest.mark.parametrize("event", [{"error": {"message": "m"}}, {"type": "error", "error": {"message": "m"}}])
def test_an_error_in_a_stream_is_its_end(event: dict[str, Any]) -> None:
    for kind in ("chat", "messages"):
        meter, _ = read(kind, event)
        assert (meter.outcome, meter.error) == ("failed", "m")


def test_an_answer_in_one_piece() -> None:
    meter = Meter("chat")
    whole = {"choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    meter.read_whole(json.dumps(whole).encode())
    assert (meter.outcome, meter.usage) == ("length", Usage(1, 2, None))
    meter = Meter("responses")
    meter.read_whole(b'{"object":"response","status":"incomplete","usage":{"input_tokens":1,"output_tokens":2}}')
    assert (meter.outcome, meter.usage) == ("length", Usage(1, 2, None))
    meter = Meter("messages")
    meter.read_whole(b'{"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":2}}')
    assert (meter.outcome, meter.usage) == ("stop", Usage(1, 2, None))


@given(st.sampled_from(["chat", "completions", "responses", "messages"]), st.binary(max_size=200))
def test_nothing_that_comes_is_too_odd(kind: Kind, data: bytes) -> None:
    meter = Meter(kind)
    assert meter.read(b"data: " + data + b"\n") >= 0
    meter.read_whole(data)


ODD = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "usage", "type", "error", "response", "message", "input_tokens", "text"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.sampled_from(["chat", "completions", "responses", "messages"]), ODD)
def test_no_shape_is_too_odd(kind: Kind, event: Any) -> None:
    read(kind, event)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_lines_pass_all_bytes_and_only_whole_lines(data: bytes, cuts: list[int]) -> None:
    lines, given_bytes, at = Lines(), b"", 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        part = lines.add(data[at:cut])
        assert part == b"" or part.endswith(b"\n")
        given_bytes, at = given_bytes + part, cut
    assert given_bytes + lines.finish() == data


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    lines = Lines()
    assert lines.add(b"x" * LINE_MOST_BYTES) == b""
    assert len(lines.add(b"x")) == LINE_MOST_BYTES + 1


@pytest.mark.parametrize(
    ("data", "ending"),
    [(b"", b""), (b"data: a\n\n", b""), (b"data: a\r\n\r\n", b""), (b"data: a\n", b"\n"), (b"data: a\n\ndata: ", b"")],
)
def test_an_event_that_broke_off_is_ended_so_that_another_can_follow(data: bytes, ending: bytes) -> None:
    lines = Lines()
    lines.add(data)
    assert lines.end_event() == ending
    assert lines.finish() == b""
