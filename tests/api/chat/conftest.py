"""Chat answers as clients put them together, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk


class Answered(msgspec.Struct):
    """What a client has in hand at the end."""

    content: str = ""
    thought: str = ""
    calls: list[tuple[str, str]] = []
    """Names and arguments, as texts."""
    reasons: list[str] = []
    scores: list[Any] = []

    def add_calls(self, deltas: list[dict[str, Any]]) -> None:
        for delta in deltas:
            function = delta["function"]
            if delta["index"] == len(self.calls):
                assert delta["type"] == "function"
                assert delta["id"]
                self.calls.append((function["name"], function["arguments"]))
            else:
                assert set(delta) == {"index", "function"}
                assert set(function) == {"arguments"}
                name, arguments = self.calls[delta["index"]]
                self.calls[delta["index"]] = (name, arguments + function["arguments"])


def read_whole(data: bytes) -> Answered:
    """A completion that is of the client's type."""
    ChatCompletion.model_validate_json(data)
    (choice,) = json.loads(data)["choices"]
    message = choice["message"]
    calls = message.get("tool_calls") or []
    assert len({call["id"] for call in calls}) == len(calls)
    return Answered(
        message["content"] or "",
        message.get("reasoning_content", ""),
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        [choice["finish_reason"]],
        (choice["logprobs"] or {}).get("content", []),
    )


def read_chunks(data: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream that went well; each is of the client's type."""
    *frames, done, nothing = data.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    written = [frame.removeprefix("data: ") for frame in frames if not frame.startswith(":")]
    for chunk in written:
        ChatCompletionChunk.model_validate_json(chunk)
    return [json.loads(chunk) for chunk in written]


def read_stream(data: bytes) -> Answered:
    """A stream that went well, put together."""
    answered = Answered()
    for chunk in read_chunks(data):
        for choice in chunk["choices"]:
            assert not answered.reasons, "something came after the finish reason"
            delta = choice["delta"]
            answered.content += delta.get("content") or ""
            answered.thought += delta.get("reasoning_content", "")
            answered.add_calls(delta.get("tool_calls", []))
            answered.scores += (choice["logprobs"] or {}).get("content") or []
            answered.reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return answered


def read_tool(name: str, **properties: Any) -> dict[str, Any]:
    """A tool as clients offer it."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": f"It is {name}.", "parameters": parameters}}


TOOLS = [
    read_tool("write", path={"type": "string"}, text={"type": "string"}),
    read_tool("count", number={"type": "integer"}, options={"type": "object"}),
]


def write_call(name: str, **values: str) -> str:
    """A call as Qwen's models write it."""
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


AskBoth = Callable[..., Awaitable[Answered]]


@pytest.fixture
def ask_both(rig: Any, markup: None, chat_body: Any) -> AskBoth:
    """Asks whole and streamed for an answer that the model writes in these pieces; both say the same."""

    async def ask(script: Any, fields: Mapping[str, Any]) -> Answered:
        rig.engine.script = script
        body = chat_body(**fields)
        whole = await rig.post(body)
        data = await whole.get_data()
        assert whole.status_code == 200, data
        streamed = await rig.post({**body, "stream": True})
        assert streamed.status_code == 200
        answered = read_whole(data)
        assert read_stream(await streamed.get_data()) == answered
        await rig.settle()
        assert rig.admission.in_flight == 0
        return answered

    return ask


@pytest.fixture(name="tools")
def tools_fixture() -> list[dict[str, Any]]:
    return TOOLS


@pytest.fixture(name="write_call")
def write_call_fixture() -> Callable[..., str]:
    return write_call


@pytest.fixture(name="read_chunks")
def read_chunks_fixture() -> Callable[[bytes], list[dict[str, Any]]]:
    return read_chunks
