from __future__ import annotations

from typing import Any

from server.text.calls import Calls, build_call_id
from server.text.parts import CallBegun


def test_calls_are_numbered_as_they_begin(tool: Any) -> None:
    calls = Calls([tool("f", a={"type": "string"})], lambda: "ours")
    assert calls.begin("f") == CallBegun(0, "ours", "f")
    assert calls.begin("g", "given") == CallBegun(1, "given", "g")
    assert calls.count == 2


def test_a_function_that_was_not_offered_has_no_schema(tool: Any) -> None:
    calls = Calls([tool("f", a={"type": "string"})])
    assert calls.find_parameters("f")["properties"] == {"a": {"type": "string"}}
    assert calls.find_parameters("g") == {}
    assert [definition["function"]["name"] for definition in calls.definitions] == ["f"]


def test_every_id_is_another() -> None:
    ids = {build_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(call_id.startswith("call_") for call_id in ids)
