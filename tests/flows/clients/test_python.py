"""OpenAI's and Anthropic's Python packages against a real server on nano: what a scripted engine cannot show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field


class Painting(BaseModel):
    colour: Literal["red", "green"]
    count: int = Field(ge=1, le=9)


PROMPT: Any = [{"role": "user", "content": "Write a Python class with many methods."}]
SCHEMA = Painting.model_json_schema()
CHAT_TOOL: Any = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
TOOL: Any = {"type": "function", "name": "paint", "parameters": SCHEMA, "strict": False}
GREEDY = {"temperature": 0}
"""The newest package has no such parameter, and the same text comes each time only without dice."""
ANTHROPIC_TOOL: Any = {"name": "paint", "input_schema": SCHEMA}


@pytest.fixture
def chat(idle: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{idle.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(idle: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=idle.url, api_key="unused", max_retries=0) as client:
        yield client


def test_a_required_call_is_made_and_its_result_goes_on(chat: openai.OpenAI) -> None:
    asked: Any = {"model": "nano", "tools": [CHAT_TOOL], "temperature": 0, "max_tokens": 200}
    first = chat.chat.completions.create(
        messages=PROMPT, tool_choice="required", parallel_tool_calls=False, **asked
    ).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls is not None
    (call,) = first.message.tool_calls
    assert call.type == "function"
    Painting.model_validate_json(call.function.arguments, strict=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": "painted"}
    turns: Any = [*PROMPT, first.message.model_dump(exclude_none=True), result]
    second = chat.chat.completions.create(messages=turns, **asked | {"max_tokens": 16})
    assert second.choices[0].message.content
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens, "the turn goes on from what was computed before"


def test_a_named_tool_is_the_one_that_is_called(chat: openai.OpenAI) -> None:
    other: Any = {"type": "function", "function": {"name": "other", "parameters": SCHEMA}}
    answer = chat.chat.completions.create(
        model="nano",
        messages=PROMPT,
        tools=[CHAT_TOOL, other],
        tool_choice={"type": "function", "function": {"name": "other"}},
        max_tokens=80,
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls or []
    assert {call.function.name for call in calls if call.type == "function"} == {"other"}


def test_chat_parses_into_a_model_of_pydantic(chat: openai.OpenAI) -> None:
    asked: Any = {"model": "nano", "messages": PROMPT, "max_tokens": 200, "temperature": 0}
    answer = chat.chat.completions.parse(response_format=Painting, **asked)
    assert isinstance(answer.choices[0].message.parsed, Painting)


def test_a_response_parses_into_a_model_of_pydantic(chat: openai.OpenAI) -> None:
    asked: Any = {"model": "nano", "input": PROMPT, "max_output_tokens": 200, "temperature": 0}
    answer = chat.responses.parse(text_format=Painting, **asked)
    assert isinstance(answer.output_parsed, Painting)


def test_a_response_calls_and_its_result_goes_on_from_the_kept_one(chat: openai.OpenAI) -> None:
    asked: Any = {"model": "nano", "tools": [TOOL], "parallel_tool_calls": False, "temperature": 0}
    with chat.responses.stream(input=PROMPT, tool_choice="required", max_output_tokens=200, **asked) as stream:
        pieces = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        first = stream.get_final_response()
    (call,) = (item for item in first.output if item.type == "function_call")
    assert call.arguments == pieces
    Painting.model_validate_json(pieces, strict=True)
    second = chat.responses.create(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "painted"}],
        previous_response_id=first.id,
        max_output_tokens=16,
        **asked,
    )
    assert second.output_text


def test_anthropics_stream_brings_a_tools_input_in_pieces(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "nano", "tools": [ANTHROPIC_TOOL], "max_tokens": 200, "extra_body": GREEDY}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    pieces: list[str] = []
    with claude.messages.stream(messages=PROMPT, tool_choice=choice, **asked) as stream:
        for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                pieces.append(event.delta.partial_json)
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    (block,) = (block for block in first.content if block.type == "tool_use")
    assert json.loads("".join(pieces)) == block.input
    assert len(pieces) > 1
    Painting.model_validate(block.input, strict=True)
    result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": "painted"}
    turns: Any = [*PROMPT, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = claude.messages.create(messages=turns, **asked | {"max_tokens": 16})
    assert second.content


def test_anthropics_thinking_streams_and_ends_within_its_budget(claude: anthropic.Anthropic) -> None:
    asked: Any = {
        "thinking": {"type": "enabled", "budget_tokens": 12},
        "output_config": {"effort": "low"},  # without which nano's template opens no thought
        "max_tokens": 40,
        "extra_body": GREEDY,
    }
    deltas: list[str] = []
    with claude.messages.stream(model="nano", messages=PROMPT, **asked) as stream:
        deltas += [event.delta.type for event in stream if event.type == "content_block_delta"]
        message = stream.get_final_message()
    thought, text = message.content
    assert thought.type == "thinking"
    assert thought.thinking
    assert thought.signature
    assert text.type == "text"
    assert text.text
    assert deltas.index("signature_delta") < deltas.index("text_delta"), "the thought ended before the text began"
    assert deltas.count("thinking_delta") <= 13


def test_chats_thinking_budget_is_kept_to_the_token(chat: openai.OpenAI) -> None:
    answer = chat.chat.completions.create(
        model="nano",
        messages=PROMPT,
        reasoning_effort="low",
        max_tokens=40,
        temperature=0,
        extra_body={"thinking_budget": 12},
    )
    message = answer.choices[0].message
    assert getattr(message, "reasoning_content", "")
    assert message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert 0 < (answer.usage.completion_tokens_details.reasoning_tokens or 0) <= 13
