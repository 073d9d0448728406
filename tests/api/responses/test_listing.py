"""A response's input in pages, each item in the form that the official client expects."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import ResponseItemList

from server.api.responses.listing import list_items, read_page
from server.errors import InvalidRequest

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes"},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "id": "rs_9", "summary": []},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
]


def page(**query: str) -> list[str]:
    return [item["id"] for item in read_page(list_items("resp_1", ITEMS), query)["data"]]


def test_every_item_is_of_the_clients_type() -> None:
    listed = read_page(list_items("resp_1", ITEMS), {"order": "asc"})
    ResponseItemList.model_validate(listed, strict=True)
    assert [item["id"] for item in listed["data"]] == [
        "msg_1_in0",
        "msg_1_in1",
        "msg_1_in2",
        "rs_9",
        "fc_1_in4",
        "item_1_in5",
    ]
    assert listed["data"][1]["content"] == [{"type": "output_text", "text": "yes", "annotations": []}]


def test_the_last_comes_first_unless_another_order_is_asked_for() -> None:
    assert page() == page(order="asc")[::-1]


def test_a_page_goes_on_behind_an_item() -> None:
    listed = read_page(list_items("resp_1", ITEMS), {"order": "asc", "limit": "2"})
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("msg_1_in0", "msg_1_in1", True)
    assert page(order="asc", limit="2", after="msg_1_in1") == ["msg_1_in2", "rs_9"]
    assert page(order="asc", after="item_1_in5") == []
    assert read_page([], {}) == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "٣"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_2"}, "after"),
    ],
)
def test_a_wrong_page_is_named(query: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        page(**query)
    assert caught.value.param == param
