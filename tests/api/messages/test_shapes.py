"""The bytes of answers, against the types of Anthropic's own Python client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import ErrorResponse, Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from server.api.generation.reply import Reply
from server.api.generation.transcript import Piece
from server.api.messages.shapes import PING, MessageAnswer
from server.errors import EngineDead, HomebaseError, SequenceFailed, StreamStopped
from server.events import PrefillAdvanced, SequenceEnded, TokensEmitted
from server.text.answer import AnswerReader
from server.text.detokenizer import ByteDetokenizer
from server.text.markup import NO_MARKUP
from server.text.parts import CallBegun, CallDelta, CallEnded, Part, TextDelta, ThoughtDelta

LIMIT = 100
ANSWER: tuple[Part, ...] = (
    ThoughtDelta("hm"),
    TextDelta("Let me look.", 0),
    CallBegun(0, "call_1", "read"),
    CallDelta(0, '{"path": '),
    CallDelta(0, '"a"}'),
    CallEnded(0),
)


def check_known(value: Any) -> None:
    """Fail for any field that the client's types do not have."""
    if isinstance(value, BaseModel):
        assert not value.model_extra, value.model_extra
        for name in type(value).model_fields:
            check_known(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            check_known(each)


def check_message(data: bytes) -> dict[str, Any]:
    check_known(Message.model_validate_json(data, strict=True))
    return json.loads(data)


def check_events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each of them of one of the client's types, named by its type."""
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    events: list[dict[str, Any]] = []
    for frame in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, payload = frame.partition("\n")
        event = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            check_known(adapter.validate_json(payload.removeprefix("data: "), strict=True))
            events.append(event)
    return events


def build_reply(said: bytes = b"", outcome: Any = "stop", *, stops: tuple[str, ...] = (), cached: int = 0) -> Reply:
    """A reply to a prompt of 40 tokens that has ended."""
    detokenizer = ByteDetokenizer([bytes([n]) for n in range(256)], frozenset())
    reply = Reply(detokenizer, AnswerReader(NO_MARKUP), 40, stops=stops)
    reply.fold(PrefillAdvanced("r", 40, 40 - cached, 0.1, cached_tokens=cached))
    reply.fold(TokensEmitted("r", tuple(said), 0.0))
    if reply.finish_reason is None:
        reply.fold(SequenceEnded("r", outcome, 0.0))
    return reply


def build_answer(**fields: Any) -> MessageAnswer:
    return MessageAnswer("req-1", "nano", 40, LIMIT, **fields)


def pieces(*deltas: Part) -> list[Piece]:
    return [Piece(delta) for delta in deltas]


def test_a_whole_answer_is_the_clients_message() -> None:
    answer = build_answer()
    for piece in pieces(*ANSWER):
        answer.keep([piece])
    reply = build_reply(b"12345", cached=30)
    reply.finish_reason = "tool_calls"
    message = check_message(answer.build_whole(reply))
    assert message["content"][2] == {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "a"}}
    assert message.pop("content")[:1] == [{"type": "thinking", "thinking": "hm", "signature": "homebase."}]
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "nano",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 30,
            "output_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


@pytest.mark.parametrize("hides_thoughts", [False, True])
def test_a_stream_is_the_clients_events_and_makes_the_same_message(hides_thoughts: bool) -> None:
    answer, whole = build_answer(hides_thoughts=hides_thoughts), build_answer(hides_thoughts=hides_thoughts)
    reply = build_reply(b"12345", "length", cached=30)
    data = answer.begin() + b"".join(answer.add([piece]) for piece in pieces(*ANSWER)) + answer.end(reply)
    events = check_events(data)
    whole.keep(pieces(*ANSWER))
    message = check_message(whole.build_whole(reply))
    start, delta = events[0]["message"], events[-2]
    assert start["usage"]["input_tokens"] == 40
    assert start["content"] == []
    assert delta["usage"] == message["usage"]
    assert {**start, **delta["delta"], "usage": delta["usage"], "content": message["content"]} == message
    assert events[-1] == {"type": "message_stop"}


def test_the_first_bytes_are_the_message_and_a_ping() -> None:
    first = build_answer().begin()
    assert first.startswith(b"event: message_start\ndata: {")
    assert first.endswith(PING)
    assert build_answer().keep_alive() == PING == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize(
    ("reply", "reason", "sequence"),
    [
        (build_reply(b"ab"), "end_turn", None),
        (build_reply(b"ab\nHuman: x", stops=("\nHuman:",)), "stop_sequence", "\nHuman:"),
        (build_reply(b"a" * 59, "length"), "max_tokens", None),
        (build_reply(b"a" * 60, "length"), "model_context_window_exceeded", None),
    ],
)
def test_why_an_answer_ends(reply: Reply, reason: str, sequence: str | None) -> None:
    for data in (build_answer().build_whole(reply), build_answer().end(reply)):
        said = json.loads(data) if data.startswith(b"{") else check_events(data)[0]["delta"]
        assert (said["stop_reason"], said["stop_sequence"]) == (reason, sequence)


def test_an_answer_without_anything_has_no_blocks() -> None:
    assert check_message(build_answer().build_whole(build_reply()))["content"] == []


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (SequenceFailed("Its scores are not numbers."), "api_error", "sequence_failed"),
        (EngineDead("Gone."), "api_error", "engine_dead"),
        (StreamStopped("Stopped."), "invalid_request_error", "stream_stopped"),
    ],
)
def test_a_failure_midway_is_the_clients_error(error: HomebaseError, kind: str, code: str) -> None:
    name, _, payload = build_answer().fail(error).decode().partition("\n")
    said = json.loads(payload.removeprefix("data: "))
    assert name == "event: error"
    assert ErrorResponse.model_validate(said, strict=True).request_id == "req-1"
    assert said == {
        "type": "error",
        "error": {"type": kind, "message": error.message, "details": {"error_code": code}},
        "request_id": "req-1",
    }
