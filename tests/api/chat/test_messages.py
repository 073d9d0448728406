from __future__ import annotations

from typing import Any

import msgspec
import pytest

from server.api.chat.messages import normalise_messages
from server.api.chat.wire import Message
from server.api.generation.turns import first_text
from server.errors import InvalidRequest


def normalise(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return normalise_messages(msgspec.convert(list(messages), list[Message]))


USER = {"role": "user", "content": "hi"}


def test_system_and_developer_messages_become_one_at_the_front_in_their_order() -> None:
    turns = normalise(
        {"role": "developer", "content": "one"},
        USER,
        {"role": "system", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "ok"},
        {"role": "system", "content": ""},
        {"role": "developer", "content": "three"},
    )
    assert turns == [
        {"role": "system", "content": "one\n\ntwo\n\nthree"},
        USER,
        {"role": "assistant", "content": "ok"},
    ]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turns = normalise({"role": "user", "content": parts}, {"role": "tool", "tool_call_id": "1", "content": parts})
    assert [turn["content"] for turn in turns] == ["ab", "ab"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video"])
def test_parts_that_are_no_text_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="text only") as caught:
        normalise({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind, kind: {}}]})
    assert caught.value.param == "messages[0].content[1].type"


def test_a_text_part_without_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="missing"):
        normalise({"role": "user", "content": [{"type": "text"}]})


@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_content_may_be_null_only_beside_tool_calls(role: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalise({"role": role, "content": None, "tool_call_id": "1"})
    assert caught.value.param == "messages[0].content"


@pytest.mark.parametrize(
    ("arguments", "object_"),
    [
        ('{"path": "a.py", "n": [1]}', {"path": "a.py", "n": [1]}),
        ({"path": "a.py"}, {"path": "a.py"}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ('{"path": ', {"arguments": '{"path": '}),
        ("[1, 2]", {"arguments": "[1, 2]"}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
    ],
)
def test_arguments_of_earlier_calls_become_objects_and_nothing_is_lost(arguments: Any, object_: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": arguments}}
    (_, turn, answer) = normalise(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "text"},
    )
    function = {"name": "read", "arguments": object_}
    assert turn["content"] == ""
    assert turn["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert answer == {"role": "tool", "tool_call_id": "c1", "content": "text"}


def test_a_tool_message_must_say_which_call_it_answers() -> None:
    with pytest.raises(InvalidRequest) as caught:
        normalise(USER, {"role": "tool", "content": "x"})
    assert caught.value.param == "messages[1].tool_call_id"


def test_an_assistants_own_answer_may_come_back_as_the_sdk_dumps_it() -> None:
    dumped = {
        "role": "assistant",
        "content": "ok",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert normalise(USER, dumped)[1] == {"role": "assistant", "content": "ok"}


def test_thoughts_and_names_are_handed_to_the_template() -> None:
    turns = normalise({**USER, "name": "ann"}, {"role": "assistant", "content": "a", "reasoning_content": "hm"})
    assert turns[0]["name"] == "ann"
    assert turns[1]["reasoning_content"] == "hm"


def test_the_first_text_of_a_role_is_found() -> None:
    turns = normalise({"role": "system", "content": "s"}, USER, {"role": "user", "content": "later"})
    assert (first_text(turns, "user"), first_text(turns, "system"), first_text([], "user")) == ("hi", "s", "")
