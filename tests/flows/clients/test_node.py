"""The OpenAI package for Node and the AI SDK against a real server, whose nano calls and conforms when held to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

See = Callable[[str, str], Any]

REFUSED = "Refused by homebase admission: 2 of 2 in flight (policy.max_in_flight = 2)."
STOPPED = "This stream was stopped at the server before it was complete."


def check_painting(painting: Any) -> None:
    assert set(painting) == {"colour", "count"}
    assert painting["colour"] in {"red", "green"}
    assert painting["count"] in range(1, 10)


def test_openai_reads_a_whole_answer_and_the_same_as_a_stream(see: See) -> None:
    whole, streamed = see("openai.mjs", "chat"), see("openai.mjs", "stream")
    assert whole["text"] == streamed["text"] != ""
    assert [whole["finish_reason"]] == streamed["reasons"] == ["length"]
    for usage in (whole["usage"], *streamed["usages"]):
        assert usage["completion_tokens"] == 24
        assert usage["total_tokens"] == usage["prompt_tokens"] + 24
    assert len(streamed["usages"]) == 1


def test_openai_gathers_a_call_from_the_stream_and_sends_its_result(see: See) -> None:
    seen = see("openai.mjs", "tools")
    assert seen["finish_reason"] == "tool_calls"
    (call,) = seen["calls"]
    assert call["name"] == "paint"
    check_painting(call["input"])
    assert seen["next"]


def test_openai_parses_what_is_held_to_a_schema(see: See) -> None:
    check_painting(see("openai.mjs", "structured"))


def test_openai_streams_a_response_and_goes_on_from_it(see: See) -> None:
    seen = see("openai.mjs", "responses")
    assert seen["events"][:2] == ["response.created", "response.in_progress"]
    assert seen["events"][-1] == "response.completed"
    assert seen["status"] == "completed"
    check_painting(seen["parsed"])
    assert seen["next"]


def test_openai_raises_a_refusal_once_with_its_sentence(see: See, server: Any) -> None:
    before = server.snapshot()["admission"]["refused_total"]
    error = see("openai.mjs", "refusal")
    assert (error["kind"], error["status"], error["code"]) == ("RateLimitError", 429, "in_flight_full")
    assert REFUSED in error["message"]
    assert server.snapshot()["admission"]["refused_total"] == before + 1, "it was not sent into retries"


def test_openai_raises_a_failure_midway_with_its_sentence(see: See) -> None:
    error = see("openai.mjs", "failure")
    assert error["kind"] == "APIError"
    assert (error["code"], error["message"]) == ("stream_stopped", STOPPED)


def test_openai_tells_an_unknown_model(see: See) -> None:
    error = see("openai.mjs", "missing")
    assert (error["kind"], error["status"], error["code"]) == ("NotFoundError", 404, "model_not_found")


@pytest.mark.parametrize("script", ["openai.mjs", "ai_sdk.mjs"])
def test_an_abort_ends_the_work(see: See, server: Any, script: str) -> None:
    def count() -> int:
        return server.said.count("client closed the connection in decode")

    before = count()
    see(script, "abort")
    server.wait_until("its place is free", lambda: not server.snapshot()["admission"]["in_flight"], 4)
    server.wait_until("it counts as cancelled", lambda: count() == before + 1)


def test_the_ai_sdk_reads_a_whole_answer_and_the_same_as_a_stream(see: See) -> None:
    whole, streamed = see("ai_sdk.mjs", "chat"), see("ai_sdk.mjs", "stream")
    assert whole["text"] == streamed["text"] != ""
    assert whole["finish_reason"] == streamed["finish_reason"] == "length"
    assert whole["usage"]["outputTokens"] == streamed["usage"]["outputTokens"] == 24
    assert "error" not in streamed["kinds"]


def test_the_ai_sdk_streams_responses_with_the_same_text(see: See) -> None:
    chat, responses = see("ai_sdk.mjs", "stream"), see("ai_sdk.mjs", "responses_stream")
    assert responses["text"] == chat["text"]
    assert responses["finish_reason"] == "length"
    assert responses["usage"]["outputTokens"] == 24


@pytest.mark.parametrize("case", ["tools", "responses_tools"])
def test_the_ai_sdk_runs_a_tool_and_sends_its_result_in_a_second_step(see: See, case: str) -> None:
    steps = see("ai_sdk.mjs", case)
    assert len(steps) == 2
    for step in steps:
        assert step["finish_reason"] == "tool-calls"
        (call,) = step["calls"]
        assert call["name"] == "paint"
        check_painting(call["input"])
        assert step["results"] == [f"painted {call['input']['count']}"]


@pytest.mark.parametrize("case", ["structured", "responses_structured"])
def test_the_ai_sdk_reads_an_object_that_is_held_to_a_schema(see: See, case: str) -> None:
    check_painting(see("ai_sdk.mjs", case))


def test_the_ai_sdk_throws_a_refusal_with_its_sentence(see: See) -> None:
    error = see("ai_sdk.mjs", "refusal")
    assert (error["name"], error["status"]) == ("AI_APICallError", 400)
    assert REFUSED in error["message"]


def test_the_ai_sdk_reports_a_failure_midway_with_its_sentence(see: See) -> None:
    (error,) = see("ai_sdk.mjs", "failure")
    assert error["message"] == STOPPED
