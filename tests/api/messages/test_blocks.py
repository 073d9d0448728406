"""The folding of parts into blocks, in any order in which a model may give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.messages.blocks import Blocks, Event
from server.api.messages.thoughts import build_signature, read_signature
from server.text.parts import CallBegun, CallDelta, CallEnded, Part, TextDelta, ThoughtDelta


def text(content: str) -> TextDelta:
    return TextDelta(content, 0)


def call(index: int, *arguments: str, ended: bool = True) -> list[Part]:
    begun = CallBegun(index, f"call_{index}", "read")
    return [begun, *(CallDelta(index, piece) for piece in arguments), *([CallEnded(index)] if ended else [])]


def fold(deltas: Sequence[Part], *, hides_thoughts: bool = False) -> tuple[list[Event], list[dict[str, Any]]]:
    blocks = Blocks(hides_thoughts=hides_thoughts)
    events = [event for delta in deltas for event in blocks.add(delta)]
    events += blocks.close()
    return events, blocks.build_content()


def collect(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The blocks as a client puts them together; fails for events out of order."""
    content: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(content)
            content.append(dict(event["content_block"]) | {"json": ""})
            is_open = True
            continue
        assert is_open
        assert event["index"] == len(content) - 1
        if event["type"] == "content_block_stop":
            is_open = False
        else:
            (key,) = event["delta"].keys() - {"type"}
            content[-1]["json" if key == "partial_json" else key] += event["delta"][key]
    assert not is_open
    return content


def test_each_kind_is_a_block_of_its_own_in_the_order_of_the_answer() -> None:
    deltas = [ThoughtDelta("h"), ThoughtDelta("m"), text("Let "), text("me."), *call(0, '{"a"', ": 1}"), *call(1, "{}")]
    events, content = fold([*deltas, text("Done.")])
    assert [event["type"].removeprefix("content_block_") for event in events] == [
        *("start", "delta", "delta", "delta", "stop"),
        *("start", "delta", "delta", "stop"),
        *("start", "delta", "delta", "stop"),
        *("start", "delta", "stop"),
        *("start", "delta", "stop"),
    ]
    assert content == [
        {"type": "thinking", "thinking": "hm", "signature": build_signature()},
        {"type": "text", "text": "Let me."},
        {"type": "tool_use", "id": "call_0", "name": "read", "input": {"a": 1}},
        {"type": "tool_use", "id": "call_1", "name": "read", "input": {}},
        {"type": "text", "text": "Done."},
    ]


def test_a_thinking_block_ends_with_a_signature_that_is_not_empty() -> None:
    events, _ = fold([ThoughtDelta("hm"), text("ok")])
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert events[2]["delta"] == {"type": "signature_delta", "signature": build_signature()}


def test_hidden_thoughts_travel_in_the_signature_alone() -> None:
    events, content = fold([ThoughtDelta("secret "), ThoughtDelta("plan"), text("ok")], hides_thoughts=True)
    assert "secret" not in str(events)
    assert content[0]["thinking"] == ""
    assert read_signature(content[0]["signature"]) == "secret plan"
    assert collect(events)[0] == {**content[0], "json": ""}


@pytest.mark.parametrize("blank", ["\n\n", " ", "\n"])
def test_white_space_between_a_thought_and_a_call_is_no_block(blank: str) -> None:
    _, content = fold([ThoughtDelta("hm"), text(blank), *call(0, "{}"), text(blank)])
    assert [block["type"] for block in content] == ["thinking", "tool_use"]


def test_white_space_before_a_text_is_kept() -> None:
    _, content = fold([ThoughtDelta("hm"), text("\n"), text("\n"), text("  x\n"), text("\n")])
    assert content[1] == {"type": "text", "text": "\n\n  x\n\n"}


@pytest.mark.parametrize("cut", ['{"path": "a', "", "{"])
def test_a_call_that_was_cut_is_an_object_all_the_same(cut: str) -> None:
    events, content = fold(call(0, *([cut] if cut else []), ended=False))
    assert content[0]["input"] == ({"arguments": cut} if cut else {})
    assert collect(events)[0]["json"] == cut
    assert events[-1] == {"type": "content_block_stop", "index": 0}


PIECES = st.text("ab \n", max_size=3)
CALL: list[Part] = [CallBegun(0, "c", "n"), CallDelta(0, '{"a": '), CallDelta(0, "1}"), CallEnded(0)]


def _as_thought(said: str) -> list[Part]:
    return [ThoughtDelta(said)]


def _as_text(said: str) -> list[Part]:
    return [text(said)]


@given(st.lists(PIECES.map(_as_thought) | PIECES.map(_as_text) | st.just(CALL), max_size=12), st.booleans())
def test_the_stream_and_the_whole_answer_say_the_same(parts: list[list[Part]], hides_thoughts: bool) -> None:
    events, content = fold([delta for part in parts for delta in part], hides_thoughts=hides_thoughts)
    for streamed, whole in zip(collect(events), content, strict=True):
        arguments = streamed.pop("json")
        assert arguments == ('{"a": 1}' if streamed["type"] == "tool_use" else "")
        assert {**streamed, **({"input": {"a": 1}} if arguments else {})} == whole
