"""The response object repeats what was asked, as the official client's types demand it."""

from __future__ import annotations

from typing import Any

import msgspec

from server.api.responses.resource import Resource
from server.api.responses.tools import Given, read_toolbox
from server.api.responses.wire import ResponsesBody

TOOLS = [{"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}]
TOOLBOX = read_toolbox([Given("tools[0]", TOOLS[0])])


def test_what_was_asked_is_repeated(read_response: Any) -> None:
    form: Any = {"type": "json_schema", "name": "weather", "schema": {"type": "object"}, "strict": True}
    body = msgspec.convert(
        {
            "input": "hi",
            "instructions": "Be brief.",
            "max_output_tokens": 50,
            "metadata": {"a": "b"},
            "parallel_tool_calls": False,
            "previous_response_id": "resp_0",
            "prompt_cache_key": "k",
            "reasoning": {"effort": "low", "summary": "auto"},
            "safety_identifier": "s",
            "store": False,
            "temperature": 0.5,
            "text": {"format": form, "verbosity": "low"},
            "tool_choice": {"type": "function", "name": "look"},
            "tools": TOOLS,
            "top_logprobs": 3,
            "top_p": 0.9,
            "truncation": "auto",
            "user": "u",
        },
        ResponsesBody,
    )
    resource = Resource("resp_1", "org/nano", 5, body, TOOLBOX)
    response = read_response(bytes(resource.build("completed", [], completed_s=7)))
    assert response == {
        "id": "resp_1",
        "object": "response",
        "created_at": 5,
        "completed_at": 7,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        "background": False,
        "instructions": "Be brief.",
        "max_output_tokens": 50,
        "metadata": {"a": "b"},
        "model": "org/nano",
        "parallel_tool_calls": False,
        "previous_response_id": "resp_0",
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "service_tier": "default",
        "store": False,
        "temperature": 0.5,
        "text": {"format": {**form, "description": None}, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "look"},
        "tools": list(TOOLBOX.definitions),
        "top_logprobs": 3,
        "top_p": 0.9,
        "truncation": "disabled",
        "user": "u",
    }


def test_what_was_left_out_is_told_as_it_was_taken(read_response: Any) -> None:
    body = ResponsesBody(input="hi")
    response = read_response(bytes(Resource("resp_1", "m", 5, body, read_toolbox([])).build("in_progress", [])))
    assert (response["temperature"], response["top_p"], response["top_logprobs"]) == (1.0, 1.0, 0)
    assert (response["tool_choice"], response["tools"], response["store"]) == ("auto", [], True)
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert response["metadata"] == {}
