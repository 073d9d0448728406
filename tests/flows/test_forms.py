"""Tools, thoughts and forms through the API with the embedded model, which was taught none of them: all is enforced."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from server.core import Core
from server.events import EventRing
from server.policy_store import PolicyStore

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "edit",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"enum": ["a.py", "b.py"]},
                    "line": {"type": "integer", "minimum": 1, "maximum": 900},
                    "force": {"type": "boolean"},
                },
                "required": ["path", "line", "force"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
]
POINT = {
    "type": "object",
    "properties": {"kind": {"enum": ["module", "class"]}, "line": {"type": "integer", "minimum": 1, "maximum": 900}},
    "required": ["kind", "line"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
EDIT = {"type": "function", "function": {"name": "edit"}}
THINKS = {"reasoning_effort": "low"}
"""Opens a thought in nano's prompt."""


class Server:
    """A server in this process, and a client of it."""

    def __init__(self, folder: Path, mtp: Any) -> None:
        overrides: Any = {"engine.mtp": (mtp, "test"), "policy.max_in_flight": (len(ASKED), "test")}
        store = PolicyStore(folder / "homebase.toml", b"", overrides)
        store.load()
        self.core = Core(store, EventRing(), lambda snapshot: None)
        self._client = self.core.build_app().test_client()

    async def ask(self, text: str, **fields: Any) -> dict[str, Any]:
        """The choice, and the usage in it."""
        body = {"model": "nano", "messages": [{"role": "user", "content": text}], "max_tokens": 300, **fields}
        response = await self._client.post("/v1/chat/completions", json=body)
        answer = json.loads(await response.get_data())
        assert response.status_code == 200, answer
        return {**answer["choices"][0], "usage": answer["usage"]}

    async def stream(self, text: str, **fields: Any) -> dict[str, Any]:
        """The same, put together from a stream."""
        body = {"model": "nano", "messages": [{"role": "user", "content": text}], "max_tokens": 300, **fields}
        response = await self._client.post("/v1/chat/completions", json={**body, "stream": True})
        data = await response.get_data(as_text=True)
        assert response.status_code == 200, data
        *frames, done, _ = data.split("\n\n")
        assert done == "data: [DONE]"
        choices = [json.loads(frame[6:])["choices"][0] for frame in frames if frame.startswith("data: ")]
        deltas = [choice["delta"] for choice in choices]
        calls: list[list[str]] = []
        for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
        return {
            "content": "".join(delta.get("content") or "" for delta in deltas),
            "thought": "".join(delta.get("reasoning_content", "") for delta in deltas),
            "calls": calls,
            "finish_reason": choices[-1]["finish_reason"],
        }


Serve = Callable[..., Any]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Starts a server; the one before it is stopped."""
    running: list[Server] = []

    async def stop() -> None:
        if running:
            assert await running.pop().core.stop_engine(20)

    async def start(mtp: Any = "auto") -> Server:
        await stop()
        running.append(Server(tmp_path, mtp))
        await running[-1].core.load()
        return running[-1]

    yield start
    await stop()
    gc.unfreeze()


def list_calls(choice: dict[str, Any]) -> list[list[str]]:
    calls = choice["message"].get("tool_calls", [])
    return [[call["function"]["name"], call["function"]["arguments"]] for call in calls]


def check_calls(choice: dict[str, Any]) -> None:
    """Whole calls of the tools above, and nothing else."""
    assert choice["finish_reason"] == "tool_calls"
    assert not choice["message"]["content"]
    assert list_calls(choice)
    for name, arguments in list_calls(choice):
        values = json.loads(arguments)
        if name == "edit":
            assert values["path"] in ("a.py", "b.py")
            assert 1 <= values["line"] <= 900
            assert type(values["force"]) is bool
        else:
            assert (name, values) == ("stop", {})


def check_point(choice: dict[str, Any]) -> None:
    """Text that the schema above allows."""
    assert choice["finish_reason"] == "stop"
    point = json.loads(choice["message"]["content"])
    assert point["kind"] in ("module", "class")
    assert 1 <= point["line"] <= 900


ASKED: list[dict[str, Any]] = [
    {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": TOOLS, "tool_choice": EDIT, "seed": 5, "temperature": 1},
    {"response_format": FORM, "frequency_penalty": 0.5, "logit_bias": {"14": 5}, "logprobs": True},
    {"response_format": FORM, "thinking_budget": 6, **THINKS},
    {"tools": TOOLS, "response_format": FORM, "parallel_tool_calls": False, "seed": 2, "temperature": 1.5},
    {"tools": TOOLS, "max_tokens": 24},
]


async def test_what_is_forced_into_form_is_the_same_with_drafts_and_without_and_streamed(serve: Serve) -> None:
    asked = [{"temperature": 0, "max_tokens": 150, **fields} for fields in ASKED]
    shown: list[list[Any]] = []
    for mtp in ("off", 3):
        server = await serve(mtp)
        answers = await asyncio.gather(*(server.ask("Change a file.", **fields) for fields in asked))
        for place in (0, 1):
            check_calls(answers[place])
        for place in (2, 3):
            check_point(answers[place])
        (check_calls if list_calls(answers[4]) else check_point)(answers[4])
        shown.append([(each["message"]["content"], list_calls(each), each["finish_reason"]) for each in answers])
    streamed = await asyncio.gather(*(server.stream("Change a file.", **fields) for fields in asked))
    shown.append([(each["content"] or None, each["calls"], each["finish_reason"]) for each in streamed])
    assert shown[0] == shown[1] == shown[2]
    ratios = [view.acceptance_ratio for view in server.core.build_snapshot().streams]
    assert ratios
    assert None not in ratios, "a form or tools switched drafting off"


async def test_a_call_beside_a_thought_at_once_each_as_it_gets_alone(serve: Serve) -> None:
    server = await serve()
    thinking: dict[str, Any] = {"temperature": 0, "max_tokens": 30, **THINKS}
    calling: dict[str, Any] = {**ASKED[0], "temperature": 0.7, "seed": 3}
    alone = [await server.ask("Why?", **thinking), await server.ask("Change a file.", **calling)]
    both = await asyncio.gather(server.ask("Why?", **thinking), server.ask("Change a file.", **calling))
    assert [each["message"].get("reasoning_content") for each in both] == [
        each["message"].get("reasoning_content") for each in alone
    ]
    assert list_calls(both[1]) == list_calls(alone[1])
    assert both[0]["message"]["reasoning_content"]
    assert both[0]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert "reasoning_content" not in both[1]["message"]
    check_calls(both[1])


async def test_a_budget_bounds_the_thought_and_what_follows_is_the_answer(serve: Serve) -> None:
    server = await serve()
    fields: dict[str, Any] = {"max_tokens": 20, "temperature": 0, **THINKS}
    budgets = (0, 1, 8)
    for budget, choice in zip(
        budgets,
        await asyncio.gather(*(server.ask("Why?", thinking_budget=budget, **fields) for budget in budgets)),
        strict=True,
    ):
        thought_tokens = choice["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert thought_tokens == budget + 1, "and the token that ends the thought"
        assert bool(choice["message"].get("reasoning_content")) is (budget > 0)
        assert choice["message"]["content"]
        assert "think>" not in choice["message"]["content"]


async def test_tools_that_must_not_be_called_are_shown_and_not_called(serve: Serve) -> None:
    server = await serve()
    bias = {"5": 100}  # the token that begins a call
    forced = await server.ask("Go.", tools=TOOLS, max_tokens=8, temperature=0, logit_bias=bias)
    kept = await server.ask("Go.", tools=TOOLS, tool_choice="none", max_tokens=8, temperature=0, logit_bias=bias)
    without = await server.ask("Go.", max_tokens=8, temperature=0)
    assert not forced["message"]["content"], "it begins a call and nothing else"
    assert kept["message"]["content"]
    assert "tool_calls" not in kept["message"]
    assert "<tool_call>" not in kept["message"]["content"]
    assert kept["usage"]["prompt_tokens"] == forced["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"]


@pytest.mark.slow
async def test_after_a_long_prompt_with_tools_the_answer_comes(serve: Serve) -> None:
    server = await serve()
    text = " ".join(f"fact {number}: value {number * 7 % 1013}." for number in range(400))
    fields: dict[str, Any] = {**ASKED[0], "temperature": 0.1, "thinking_budget": 20}
    choice = await server.ask(text, **fields)
    assert choice["usage"]["prompt_tokens"] > 5000
    check_calls(choice)


async def test_a_penalty_that_is_accepted_is_honoured(serve: Serve) -> None:
    server = await serve()
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    asked = [server.ask("a a a a a", presence_penalty=penalty, **fields) for penalty in (0, 2, 2)]
    texts = [choice["message"]["content"] for choice in await asyncio.gather(*asked)]
    assert texts[0] != texts[1] == texts[2]
