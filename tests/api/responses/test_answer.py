"""What a response looks like on the wire, event by event, for every part that an answer can have."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from server.api.generation.reply import Reply, Usage
from server.api.generation.scores import Scored
from server.api.generation.transcript import Piece
from server.api.responses.answer import ResponsesAnswer
from server.api.responses.output import Output
from server.api.responses.resource import Resource
from server.api.responses.tools import Given, read_toolbox
from server.api.responses.wire import ResponsesBody
from server.errors import HomebaseError, SequenceFailed, StreamStopped
from server.events import TokenLogprob
from server.text.parts import CallBegun, CallDelta, CallEnded, Part, TextDelta, ThoughtDelta

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "Edits."},
    {
        "type": "namespace",
        "name": "mail",
        "description": "Mail.",
        "tools": [{"type": "function", "name": "send"}],
    },
]
TOOLBOX = read_toolbox([Given(f"tools[{index}]", each) for index, each in enumerate(TOOLS)])


class Settled:
    """What a response was settled with."""

    def __init__(self) -> None:
        self.objects: list[dict[str, Any]] = []
        self.outputs: list[Sequence[dict[str, Any]]] = []

    def __call__(self, last: msgspec.Raw, output: Sequence[dict[str, Any]]) -> None:
        self.objects.append(json.loads(bytes(last)))
        self.outputs.append(output)


class Ended:
    """A reply that is complete, as far as a writer looks at it."""

    def __init__(self, finish_reason: str = "stop") -> None:
        self.finish_reason = finish_reason
        self.usage = Usage(prompt_tokens=10, completion_tokens=7, cached_tokens=4, thought_tokens=2)


def build(settle: Settled | None = None, spell: Callable[[int], bytes] | None = None) -> ResponsesAnswer:
    resource = Resource("resp_1", "org/nano", 1_800_000_000, ResponsesBody(input="hi", tools=TOOLS), TOOLBOX)
    return ResponsesAnswer(resource, Output("1", TOOLBOX, spell), settle or Settled())


def pieces(*deltas: Part) -> list[Piece]:
    return [Piece(delta) for delta in deltas]


def ended(reason: str = "stop") -> Reply:
    reply: Any = Ended(reason)
    return reply


def stream(answer: ResponsesAnswer, *deltas: Part, reason: str = "stop") -> bytes:
    """A whole stream, piece by piece."""
    written = answer.begin() + b"".join(answer.add(pieces(delta)) for delta in deltas)
    return written + answer.end(ended(reason))


def whole(answer: ResponsesAnswer, *deltas: Part, reason: str = "stop") -> bytes:
    for delta in deltas:
        answer.keep(pieces(delta))
    return answer.build_whole(ended(reason))


def without_clock(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name != "completed_at"}


EVERYTHING: list[Part] = [
    ThoughtDelta("Hm, "),
    ThoughtDelta("well."),
    TextDelta("I ", 10),
    TextDelta("look.", 12),
    CallBegun(0, "call_a", "look"),
    CallDelta(0, '{"city": '),
    CallDelta(0, '"Wien"}'),
    CallEnded(0),
    CallBegun(1, "call_b", "apply_patch"),
    CallDelta(1, '{"input": "*** Beg'),
    CallDelta(1, 'in"}'),
    CallEnded(1),
    CallBegun(2, "call_c", "mail.send"),
    CallDelta(2, "{}"),
    CallEnded(2),
]


def test_every_part_comes_in_the_dialects_order(read_events: Any) -> None:
    events = read_events(stream(build(), *EVERYTHING, reason="tool_calls"))
    assert [(event["type"], event.get("output_index")) for event in events] == [
        ("response.created", None),
        ("response.in_progress", None),
        ("response.output_item.added", 0),
        ("response.reasoning_summary_part.added", 0),
        ("response.reasoning_summary_text.delta", 0),
        ("response.reasoning_summary_text.delta", 0),
        ("response.reasoning_summary_text.done", 0),
        ("response.reasoning_summary_part.done", 0),
        ("response.output_item.done", 0),
        ("response.output_item.added", 1),
        ("response.content_part.added", 1),
        ("response.output_text.delta", 1),
        ("response.output_text.delta", 1),
        ("response.output_text.done", 1),
        ("response.content_part.done", 1),
        ("response.output_item.done", 1),
        ("response.output_item.added", 2),
        ("response.function_call_arguments.delta", 2),
        ("response.function_call_arguments.delta", 2),
        ("response.function_call_arguments.done", 2),
        ("response.output_item.done", 2),
        ("response.output_item.added", 3),
        ("response.custom_tool_call_input.delta", 3),
        ("response.custom_tool_call_input.delta", 3),
        ("response.custom_tool_call_input.done", 3),
        ("response.output_item.done", 3),
        ("response.output_item.added", 4),
        ("response.function_call_arguments.delta", 4),
        ("response.function_call_arguments.done", 4),
        ("response.output_item.done", 4),
        ("response.completed", None),
    ]


def test_the_items_are_those_of_the_dialect(read_events: Any) -> None:
    events = read_events(stream(build(), *EVERYTHING, reason="tool_calls"))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == [
        {
            "id": "rs_1_0",
            "type": "reasoning",
            "status": "completed",
            "summary": [{"type": "summary_text", "text": "Hm, well."}],
            "encrypted_content": None,
        },
        {
            "id": "msg_1_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
        },
        {
            "id": "fc_1_2",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_a",
            "name": "look",
            "arguments": '{"city": "Wien"}',
        },
        {
            "id": "ctc_1_3",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_b",
            "name": "apply_patch",
            "input": "*** Begin",
        },
        {
            "id": "fc_1_4",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_c",
            "name": "send",
            "namespace": "mail",
            "arguments": "{}",
        },
    ]
    assert events[-1]["response"]["output"] == done


def test_the_deltas_of_an_item_make_what_it_says_when_it_is_done(read_events: Any) -> None:
    events = read_events(stream(build(), *EVERYTHING, reason="tool_calls"))
    for kind, field in (
        ("reasoning_summary_text", "text"),
        ("output_text", "text"),
        ("function_call_arguments", "arguments"),
        ("custom_tool_call_input", "input"),
    ):
        done = [event for event in events if event["type"] == f"response.{kind}.done"]
        deltas = [event for event in events if event["type"] == f"response.{kind}.delta"]
        for end in done:
            text = "".join(event["delta"] for event in deltas if event["output_index"] == end["output_index"])
            assert text == end[field]
            assert {event["item_id"] for event in deltas if event["output_index"] == end["output_index"]} == {
                end["item_id"]
            }
        assert done


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
def test_the_last_event_has_the_object_of_a_client_that_does_not_stream(
    read_events: Any, read_response: Any, reason: str
) -> None:
    streamed = read_events(stream(build(), *EVERYTHING, reason=reason))[-1]["response"]
    assert without_clock(read_response(whole(build(), *EVERYTHING, reason=reason))) == without_clock(streamed)


def test_counts_are_those_of_the_reply(read_response: Any) -> None:
    assert read_response(whole(build(), TextDelta("x", 0)))["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 17,
    }


def test_an_answer_that_was_cut_is_incomplete_and_says_why(read_events: Any) -> None:
    events = read_events(stream(build(), TextDelta("Half", 0), reason="length"))
    last = events[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["completed_at"] is None
    assert [item["status"] for item in last["response"]["output"]] == ["incomplete"]
    assert events[-2]["item"]["status"] == "incomplete"


def test_signs_of_life_are_numbered_events_with_the_object(read_events: Any) -> None:
    answer = build()
    written = answer.begin() + answer.keep_alive() + answer.add(pieces(TextDelta("a", 0))) + answer.keep_alive()
    events = read_events(written)
    alive = [event for event in events if event["type"] == "response.in_progress"]
    assert len(alive) == 3
    assert all(event["response"]["status"] == "in_progress" and event["response"]["output"] == [] for event in alive)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (SequenceFailed("Its scores are not numbers."), "failed", "server_error"),
        (StreamStopped("This stream was stopped."), "cancelled", "invalid_prompt"),
    ],
)
def test_a_failure_midway_is_one_event_with_what_there_was(
    read_events: Any, error: HomebaseError, status: str, code: str
) -> None:
    settled, deltas = Settled(), (TextDelta("Half", 0), CallBegun(0, "call_a", "look"), CallDelta(0, "{"))
    answer = build(settled)
    written = answer.begin() + answer.add(pieces(*deltas)) + answer.fail(error)
    last = read_events(written)[-1]
    assert last["type"] == "response.failed"
    response = last["response"]
    assert (response["status"], response["usage"]) == (status, None)
    assert response["error"] == {"code": code, "message": error.message, "type": error.code}
    assert [(item["type"], item["status"]) for item in response["output"]] == [
        ("message", "completed"),
        ("function_call", "incomplete"),
    ]
    assert settled.objects == [response]


def test_it_is_settled_once_with_the_object_and_the_output() -> None:
    streamed, at_once = Settled(), Settled()
    stream(build(streamed), *EVERYTHING)
    whole(build(at_once), *EVERYTHING)
    for settled in (streamed, at_once):
        assert len(settled.objects) == 1
        assert settled.objects[0]["status"] == "completed"
        assert list(settled.outputs[0]) == settled.objects[0]["output"]


def test_what_there_is_of_it_can_be_looked_at_in_between(read_response: Any) -> None:
    answer = build()
    answer.add(pieces(ThoughtDelta("Hm."), TextDelta("Half", 3), CallBegun(0, "call_a", "apply_patch")))
    now = read_response(answer.build_now())
    assert now["status"] == "in_progress"
    assert [item["status"] for item in now["output"]] == ["completed", "completed", "in_progress"]
    answer.add(pieces(CallDelta(0, '{"input": "***')))
    assert read_response(answer.build_now())["output"][2]["input"] == "***"


def test_log_probabilities_come_with_their_text_and_with_the_whole(read_events: Any) -> None:
    scores = (Scored(72, TokenLogprob(-0.5, ((72, -0.5), (73, -1.5))), 0),)
    answer = build(spell=lambda token_id: bytes([token_id]))
    written = answer.begin() + answer.add([Piece(TextDelta("H", 0), scores)]) + answer.end(ended())
    events = read_events(written)
    entry = {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "H", "logprob": -0.5, "bytes": [72]},
            {"token": "I", "logprob": -1.5, "bytes": [73]},
        ],
    }
    (delta,) = [event for event in events if event["type"] == "response.output_text.delta"]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert delta["logprobs"] == done["logprobs"] == [entry]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]
