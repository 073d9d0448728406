"""Which items an answer's pieces make, in orders that a well-behaved model does not choose, and when it is cut."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.generation.transcript import Piece
from server.api.responses.output import Output
from server.api.responses.output_items import Event
from server.api.responses.tools import Given, read_toolbox
from server.text.parts import CallBegun, CallDelta, CallEnded, Part, TextDelta, ThoughtDelta

TOOLBOX = read_toolbox(
    [
        Given("tools[0]", {"type": "function", "name": "look"}),
        Given("tools[1]", {"type": "custom", "name": "apply_patch"}),
    ]
)


def run(*deltas: Part) -> tuple[list[dict[str, Any]], list[Event]]:
    """The items, and all events."""
    output = Output("1", TOOLBOX)
    events = [event for delta in deltas for event in output.add(Piece(delta))]
    events += output.close("completed")
    return output.build(), events


def done(events: list[Event]) -> list[int]:
    return [fields["output_index"] for name, fields in events if name == "response.output_item.done"]


@pytest.mark.parametrize(
    ("name", "shown"), [("look", {"arguments": '{"input": "*** Be'}), ("apply_patch", {"input": "*** Be"})]
)
def test_a_call_that_was_cut_is_never_announced_as_done(name: str, shown: dict[str, str]) -> None:
    output = Output("1", TOOLBOX)
    deltas = (TextDelta("a", 0), CallBegun(0, "call_a", name), CallDelta(0, '{"input": "*** Be'))
    events = [event for delta in deltas for event in output.add(Piece(delta))]
    assert list(output.close("incomplete")) == []
    assert done(events) == [0]
    _, item = output.build()
    assert item["status"] == "incomplete"
    assert item.items() >= shown.items()


def test_text_that_was_cut_is_done_and_incomplete() -> None:
    output = Output("1", TOOLBOX)
    events = [*output.add(Piece(TextDelta("a", 0))), *output.close("incomplete")]
    assert done(events) == [0]
    assert [item["status"] for item in output.build()] == ["incomplete"]


def test_calls_whose_arguments_are_interleaved_stay_apart() -> None:
    items, events = run(
        CallBegun(0, "call_a", "look"),
        CallBegun(1, "call_b", "look"),
        CallDelta(0, '{"a"'),
        CallDelta(1, '{"b"'),
        CallDelta(0, ": 1}"),
        CallEnded(0),
        CallDelta(1, ": 2}"),
        CallEnded(1),
    )
    assert [(item["call_id"], item["arguments"]) for item in items] == [("call_a", '{"a": 1}'), ("call_b", '{"b": 2}')]
    assert done(events) == [0, 1]


def test_text_and_thoughts_behind_a_call_are_new_items() -> None:
    items, events = run(
        TextDelta("I look.", 0),
        CallBegun(0, "call_a", "look"),
        CallDelta(0, "{}"),
        CallEnded(0),
        ThoughtDelta("Hm."),
        TextDelta("Done.", 50),
    )
    assert [item["id"] for item in items] == ["msg_1_0", "fc_1_1", "rs_1_2", "msg_1_3"]
    assert done(events) == [0, 1, 2, 3]


def test_an_answer_without_anything_is_an_empty_message() -> None:
    output = Output("1", TOOLBOX)
    assert done(list(output.close("completed"))) == [0]
    (item,) = output.build()
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


def test_a_name_that_the_model_made_up_is_called_as_it_stands() -> None:
    items, _ = run(CallBegun(0, "call_a", "fly"), CallDelta(0, "{}"), CallEnded(0))
    assert (items[0]["type"], items[0]["name"]) == ("function_call", "fly")
