"""The shape of a Messages request on the wire, and its strict decoding. No shape from here goes deeper."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.api.decoding import convert, decode_object, log_unknown
from server.api.generation.sampling import (
    SAMPLING_EXPECTED,
    SamplingFields,
    check_seed,
    check_stops,
    stops_expected,
)
from server.api.generation.thinking import Thinking, read_effort
from server.api.messages.tools import TOOLS_EXPECTED, JsonFormat, ToolChoice, ToolDefinition
from server.api.messages.unbuilt import HARMLESS, UNBUILT, refuse_unbuilt


class Block(msgspec.Struct, frozen=True):
    """One content block, of any kind; which fields it has follows from its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: str | list[Block] | dict[str, Any] | None = None
    is_error: bool | None = None
    source: Any = None
    title: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message as it was sent."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ThinkingFields(msgspec.Struct, frozen=True):
    """`thinking`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=0)] | None = None
    display: str | None = None
    """"omitted": thoughts are wanted by their signature alone. Anything else: by their text."""


class OutputConfig(msgspec.Struct, frozen=True):
    """`output_config`."""

    effort: str | None = None
    format: JsonFormat | None = None


class MessagesBody(SamplingFields, frozen=True, kw_only=True):
    """The body of POST /v1/messages: every field that is honoured. null means that it was left out."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    system: str | list[Block] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingFields | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def is_streaming(self) -> bool:
        """True when the answer is wanted piece by piece."""
        return bool(self.stream)

    @property
    def hides_thoughts(self) -> bool:
        """True when thoughts are wanted by their signature alone."""
        return self.thinking is not None and self.thinking.display == "omitted"

    @property
    def wanted_thinking(self) -> Thinking:
        """What it says of thinking. `adaptive` leaves it to the model, as saying nothing does."""
        thinking, effort = self.thinking, None if self.output_config is None else self.output_config.effort
        return Thinking(
            None if thinking is None or thinking.type == "adaptive" else thinking.type == "enabled",
            read_effort(effort, "output_config.effort"),
            None if thinking is None or thinking.type == "disabled" else thinking.budget_tokens,
        )


def _expect_blocks(where: str) -> dict[str, str]:
    """What content may be, in words."""
    return {
        where: "a string or a list of content blocks",
        f"{where}[]": 'an object like {"type": "text", "text": "..."}',
        **{
            f"{where}[].{name}": "a string" for name in ("type", "text", "thinking", "signature", "id", "name", "title")
        },
        **{f"{where}[].{name}": "a string" for name in ("tool_use_id", "tool_name")},
        f"{where}[].is_error": "true or false",
        f"{where}[].content": "a string or a list of content blocks",
        f"{where}[].content[]": 'an object like {"type": "text", "text": "..."}',
        **{f"{where}[].content[].{name}": "a string" for name in ("type", "text", "title", "tool_name")},
    }


EXPECTED = {
    "model": "a string",
    "messages": "a list of at least one message",
    "messages[]": "an object with a role and content",
    "messages[].role": "one of user, assistant, system",
    **_expect_blocks("messages[].content"),
    **_expect_blocks("system"),
    "max_tokens": "a whole number of at least 1",
    "stream": "true or false",
    "thinking": 'an object like {"type": "adaptive"}',
    "thinking.type": '"enabled", "disabled" or "adaptive"',
    "thinking.budget_tokens": "a whole number of at least 0",
    "thinking.display": "a string",
    "output_config": 'an object like {"effort": "low"}',
    "output_config.effort": "a string",
    "chat_template_kwargs": "an object",
    **TOOLS_EXPECTED,
    **SAMPLING_EXPECTED,
    **stops_expected("stop_sequences"),
    "stop_sequences": stops_expected("stop_sequences")["stop_sequences"].removeprefix("a string or "),
}
"""What each field may be, in words."""


def decode_messages(body: bytes, content_type: str = "") -> MessagesBody:
    """The Messages request in a body. Raises InvalidRequest and UnsupportedParameter."""
    document = decode_object(body, content_type)
    refuse_unbuilt(document)
    asked = convert(document, MessagesBody, EXPECTED)
    check_seed(asked.seed, document)
    check_stops(asked.stop_sequences, "stop_sequences", document)
    log_unknown(document, {*MessagesBody.__struct_fields__, *UNBUILT, *HARMLESS})
    return asked
