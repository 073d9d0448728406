"""The shape of a Responses request on the wire, and its strict decoding. No shape from here goes deeper."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

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
from server.api.responses.unbuilt import HARMLESS, MOVED, UNBUILT, refuse_unbuilt

INCLUDE_LOGPROBS = "message.output_text.logprobs"
"""The entry of `include` that asks for log-probabilities."""


class TextFormat(msgspec.Struct, frozen=True):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextFields(msgspec.Struct, frozen=True):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Accepted without effect: the model has no such switch."""


class ReasoningFields(msgspec.Struct, frozen=True):
    """`reasoning`."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Accepted without effect: thoughts are shown whole."""
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    """Whether the prompt keeps the thoughts of earlier turns."""


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_obfuscation: bool | None = None
    """Accepted without effect: nothing is ever padded."""


class ResponsesBody(SamplingFields, frozen=True, kw_only=True):
    """The body of POST /v1/responses: every field that is honoured. null means that it was left out."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MOST)] | None = None
    include: list[str] | None = None
    stop: str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def is_streaming(self) -> bool:
        """True when the answer is wanted piece by piece."""
        return bool(self.stream)

    @property
    def is_kept(self) -> bool:
        """True unless the client says that the response shall not be kept."""
        return self.store is not False

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives to show for each token; None when no log-probabilities are wanted at all."""
        if self.top_logprobs or INCLUDE_LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None

    @property
    def wanted_thinking(self) -> Thinking:
        """What it says of thinking."""
        return Thinking(effort=read_effort(self.reasoning.effort, "reasoning.effort") if self.reasoning else None)

    @property
    def template_switches(self) -> dict[str, Any]:
        """Switches of the template: those that its fields mean, then those that the client gives itself."""
        context = self.reasoning.context if self.reasoning else None
        meant = {} if context in (None, "auto") else {"preserve_thinking": context == "all_turns"}
        return {**meant, **(self.chat_template_kwargs or {})}


EXPECTED = {
    "model": "a string",
    "input": "a string or a list of items",
    "input[]": 'an object like {"role": "user", "content": "..."}',
    "instructions": "a string",
    "previous_response_id": "the id of a response",
    "store": "true or false",
    "stream": "true or false",
    "stream_options": "an object",
    "stream_options.include_obfuscation": "true or false",
    "max_output_tokens": "a whole number of at least 1",
    "top_logprobs": f"a whole number from 0 to {TOP_LOGPROBS_MOST}",
    "include": "a list of strings",
    "include[]": "a string",
    "tools": "a list of tools",
    "tools[]": 'an object like {"type": "function", "name": "...", "parameters": {...}}',
    "tool_choice": '"auto", "none", "required" or an object that names a tool',
    "parallel_tool_calls": "true or false",
    "text": "an object with a format",
    "text.format": 'an object with a type: "text", "json_object" or "json_schema"',
    "text.format.type": '"text", "json_object" or "json_schema"',
    "text.format.name": "a string",
    "text.format.description": "a string",
    "text.format.schema": "a JSON schema",
    "text.format.strict": "true or false",
    "text.verbosity": '"low", "medium" or "high"',
    "reasoning": 'an object like {"effort": "low"}',
    "reasoning.effort": "a string",
    "reasoning.summary": '"auto", "concise" or "detailed"',
    "reasoning.context": '"auto", "current_turn" or "all_turns"',
    "truncation": '"auto" or "disabled"',
    "metadata": "an object of strings",
    "metadata[...]": "a string",
    "user": "a string",
    "prompt_cache_key": "a string",
    "safety_identifier": "a string",
    "chat_template_kwargs": "an object",
    **SAMPLING_EXPECTED,
    **stops_expected("stop"),
}
"""What each field may be, in words."""


def decode_responses(body: bytes, content_type: str = "") -> ResponsesBody:
    """The request in a body. Raises InvalidRequest and UnsupportedParameter."""
    document = decode_object(body, content_type)
    refuse_unbuilt(document)
    asked = convert(document, ResponsesBody, EXPECTED)
    check_seed(asked.seed, document)
    check_stops(asked.stop, "stop", document)
    log_unknown(document, {*ResponsesBody.__struct_fields__, *UNBUILT, *MOVED, *HARMLESS})
    return asked
