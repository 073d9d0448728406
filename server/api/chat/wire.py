"""The shape of a chat request on the wire, and its strict decoding. No shape from here goes deeper into the server."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.api.chat.tools import TOOLS_EXPECTED, ResponseFormat, ToolDefinition
from server.api.decoding import convert, decode_object, log_unknown
from server.api.generation.sampling import (
    SAMPLING_EXPECTED,
    TOP_LOGPROBS_MOST,
    SamplingFields,
    check_seed,
    check_stops,
    stops_expected,
)
from server.api.generation.thinking import Thinking, read_effort
from server.api.generation.unbuilt import HARMLESS, UNBUILT, refuse_unbuilt
from server.errors import InvalidRequest, UnsupportedParameter


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content; only text parts carry anything that is used."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function of a tool call in the history."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call that an assistant made earlier in the conversation."""

    function: CalledFunction
    id: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message as it was sent."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None


class ReasoningFields(msgspec.Struct, frozen=True):
    """`reasoning`, as some routers write what `reasoning_effort` says."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None


class ThinkingFields(msgspec.Struct, frozen=True):
    """`thinking`, as Anthropic and some others write it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=0)] | None = None


class ChatBody(SamplingFields, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions: every field that is honoured. null means that it was left out."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MOST)] | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningFields | None = None
    thinking: ThinkingFields | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def is_streaming(self) -> bool:
        """True when the answer is wanted piece by piece."""
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """True when a stream is to end with its token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def asked_max_tokens(self) -> int | None:
        """The most tokens to generate. Of the two names the newer one, max_completion_tokens, wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def max_tokens_name(self) -> str:
        """The name under which `asked_max_tokens` was sent."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def wanted_thinking(self) -> Thinking:
        """What its several fields say of thinking; of two that say the same the one named first here wins."""
        reasoning, thinking = self.reasoning or ReasoningFields(), self.thinking
        switches = (
            self.enable_thinking,
            None if thinking is None or thinking.type == "adaptive" else thinking.type == "enabled",
            reasoning.enabled,
        )
        budgets = (self.thinking_budget, None if thinking is None else thinking.budget_tokens, reasoning.max_tokens)
        return Thinking(
            next((is_on for is_on in switches if is_on is not None), None),
            read_effort(self.reasoning_effort, "reasoning_effort") or read_effort(reasoning.effort, "reasoning.effort"),
            next((budget for budget in budgets if budget is not None), None),
        )

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives to show for each token; None when no log-probabilities are wanted at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


EXPECTED = {
    "model": "a string",
    "messages": "a list of at least one message",
    "messages[]": "an object with a role and content",
    "messages[].role": "one of system, developer, user, assistant, tool",
    "messages[].content": "a string or a list of text parts",
    "messages[].content[]": 'an object like {"type": "text", "text": "..."}',
    "messages[].content[].type": "a string",
    "messages[].content[].text": "a string",
    "messages[].content[].refusal": "a string",
    "messages[].name": "a string",
    "messages[].tool_call_id": "a string",
    "messages[].tool_calls": "a list of tool calls",
    "messages[].tool_calls[]": "an object with a function",
    "messages[].tool_calls[].id": "a string",
    "messages[].tool_calls[].function": "an object with a name and arguments",
    "messages[].tool_calls[].function.name": "a string",
    "messages[].tool_calls[].function.arguments": "a string of JSON or an object",
    "messages[].reasoning_content": "a string",
    "stream": "true or false",
    "stream_options": 'an object like {"include_usage": true}',
    "stream_options.include_usage": "true or false",
    "max_tokens": "a whole number of at least 1",
    "max_completion_tokens": "a whole number of at least 1",
    "logprobs": "true or false",
    "top_logprobs": f"a whole number from 0 to {TOP_LOGPROBS_MOST}",
    "n": "a whole number",
    "reasoning_effort": "a string",
    "reasoning": 'an object like {"effort": "low"}',
    "reasoning.effort": "a string",
    "reasoning.enabled": "true or false",
    "reasoning.max_tokens": "a whole number of at least 0",
    "thinking": 'an object like {"type": "enabled"}',
    "thinking.type": '"enabled", "disabled" or "adaptive"',
    "thinking.budget_tokens": "a whole number of at least 0",
    "enable_thinking": "true or false",
    "thinking_budget": "a whole number of at least 0",
    "chat_template_kwargs": "an object",
    **TOOLS_EXPECTED,
    **SAMPLING_EXPECTED,
    **stops_expected("stop"),
}
"""What each field may be, in words."""


def decode_chat(body: bytes, content_type: str = "") -> ChatBody:
    """The chat request in a body. Raises InvalidRequest and UnsupportedParameter."""
    document = decode_object(body, content_type)
    refuse_unbuilt(document)
    chat = convert(document, ChatBody, EXPECTED)
    check_seed(chat.seed, document)
    check_stops(chat.stop, "stop", document)
    if chat.n is not None and chat.n != 1:
        raise UnsupportedParameter("`n` must be 1: this server gives one choice per request.", param="n")
    _check_top_logprobs(chat)
    log_unknown(document, {*ChatBody.__struct_fields__, *UNBUILT, *HARMLESS})
    return chat


def _check_top_logprobs(chat: ChatBody) -> None:
    if chat.top_logprobs and not chat.logprobs:
        raise InvalidRequest(
            f"`top_logprobs` is only taken together with `logprobs`: true; {chat.top_logprobs} was given without it. "
            "Set `logprobs` to true, or leave `top_logprobs` out.",
            param="top_logprobs",
        )
