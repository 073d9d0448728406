"""What a request asks for, in whichever dialect it was asked. Frozen; checked; not yet tokenized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from server.api.generation.sampling import SamplingFields
from server.api.generation.thinking import Thinking
from server.text.tools import Tool


class Caller(msgspec.Struct, frozen=True):
    """What of an HTTP request, other than its body, the answer depends on."""

    request_id: str
    headers: Mapping[str, str]
    """Names in lower case."""
    api_key: str
    """What it carries as a key where none is asked for; that tells conversations apart. Else empty."""
    peer: str
    key_name: str = ""
    """Of the key that it carries; empty when none is asked for."""
    arrived_s: float = 0.0
    """Unix time at which its head had been read."""

    @property
    def owner(self) -> str:
        """Whose things it may see: of two callers with the same owner neither is a stranger to the other."""
        return f"key {self.key_name}" if self.key_name else f"unnamed {self.api_key}"


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation, for the model's chat template."""

    turns: Sequence[Mapping[str, Any]]
    """As templates take them; see `server.api.generation.turns`."""
    tools: tuple[Tool, ...] = ()
    thinking: Thinking = Thinking()
    template_kwargs: Mapping[str, Any] = {}
    """Switches of the template that the client names itself; they win over what `thinking` means."""


class TextPrompt(msgspec.Struct, frozen=True):
    """A text that the model continues, without a template; or its token ids."""

    text: str = ""
    token_ids: tuple[int, ...] | None = None


class ToolRule(msgspec.Struct, frozen=True):
    """Whether and which tools must be called."""

    choice: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    """With `required`: this one and no other."""
    parallel: bool = True
    """False: at most one call."""


class Format(msgspec.Struct, frozen=True):
    """What the answer's text must be."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    schema: Mapping[str, Any] | bool | None = None
    """With `json_schema`."""
    param: str = "response_format"
    """The field to name when the schema cannot be used."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that is asked for."""

    caller: Caller
    body_bytes: int
    model: str | None
    prompt: ChatPrompt | TextPrompt
    prompt_name: str = "messages"
    """The field in which the dialect has it."""
    is_streaming: bool = False
    max_tokens: int | None = None
    max_tokens_name: str = "max_tokens"
    """The field in which the dialect has it."""
    sampling: SamplingFields
    stops: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """None: no log-probabilities at all."""
    tool_rule: ToolRule = ToolRule()
    format: Format = Format()
