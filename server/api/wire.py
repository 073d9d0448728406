"""The shape of a chat request on the wire, and its strict decoding. No shape from here goes deeper into the server."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.api.decoding import convert, decode_object, describe_field
from server.api.logit_bias import read_logit_bias
from server.api.unbuilt import HARMLESS, UNBUILT, refuse_unbuilt
from server.engine.request import Sampling
from server.errors import InvalidRequest, UnsupportedParameter

log = logging.getLogger(__name__)

STOPS_MOST = 16
"""OpenAI takes 4; editors that complete code send more."""

STOP_CHARS = 512
"""A stop string is compared with the end of the text at every token."""

TOP_LOGPROBS_MOST = 20
"""As OpenAI's."""

SEED_LIMIT = 2**63
TOP_K_OFF = -1
"""Some clients write -1 for "keep all", which is 0 here."""


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


class ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions: every field that is honoured. null means that it was left out."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MOST)] | None = None
    stop: str | list[str] | None = None
    n: int | None = None

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
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives to show for each token; None when no log-probabilities are wanted at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def build_sampling(self, vocab_size: int) -> Sampling:
        """How tokens are drawn; temperature 1 and no filter where nothing was said. Raises InvalidRequest.

        Of the two names for one penalty `repetition_penalty` wins.
        """
        top_k = 0 if self.top_k in (None, TOP_K_OFF) else self.top_k
        if top_k > vocab_size:
            raise InvalidRequest(
                f"`top_k` must be a whole number from 0 (keep all) to {vocab_size:,}, the size of the vocabulary; "
                f"{top_k if top_k < SEED_LIMIT else 'a huge number'} was given.",
                param="top_k",
            )
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=top_k,
            min_p=0.0 if self.min_p is None else self.min_p,
            seed=self.seed,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or self.repeat_penalty or 1.0,
            logit_bias=read_logit_bias(self.logit_bias, vocab_size),
        )


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
    "temperature": "a number from 0 to 2",
    "top_p": "a number above 0 and at most 1",
    "top_k": "a whole number from 0 (keep all) to the size of the vocabulary",
    "min_p": "a number from 0 to 1",
    "frequency_penalty": "a number from -2 to 2",
    "presence_penalty": "a number from -2 to 2",
    "repetition_penalty": "a number above 0 and at most 2",
    "repeat_penalty": "a number above 0 and at most 2",
    "logit_bias": "an object from token ids, written as strings, to numbers from -100 to 100",
    "logprobs": "true or false",
    "top_logprobs": f"a whole number from 0 to {TOP_LOGPROBS_MOST}",
    "seed": "a whole number from 0 to 9223372036854775807",
    "stop": f"a string or a list of at most {STOPS_MOST} strings, each of 1 to {STOP_CHARS} characters",
    "stop[]": f"a string of 1 to {STOP_CHARS} characters",
    "n": "a whole number",
}
"""What each field may be, in words."""


def decode_chat(body: bytes, content_type: str = "") -> ChatBody:
    """The chat request in a body. Raises InvalidRequest and UnsupportedParameter."""
    document = decode_object(body, content_type)
    refuse_unbuilt(document)
    chat = convert(document, ChatBody, EXPECTED)
    _check_stops(chat, document)
    if chat.seed is not None and not 0 <= chat.seed < SEED_LIMIT:
        raise describe_field("seed", document, EXPECTED)
    if chat.n is not None and chat.n != 1:
        raise UnsupportedParameter("`n` must be 1: this server gives one choice per request.", param="n")
    _check_top_logprobs(chat)
    _log_unknown(document)
    return chat


def _check_stops(chat: ChatBody, document: dict[str, Any]) -> None:
    if len(chat.stops) > STOPS_MOST:
        raise describe_field("stop", document, EXPECTED)
    for index, stop in enumerate(chat.stops):
        if not 1 <= len(stop) <= STOP_CHARS:
            raise describe_field("stop" if isinstance(chat.stop, str) else f"stop[{index}]", document, EXPECTED)


def _check_top_logprobs(chat: ChatBody) -> None:
    if chat.top_logprobs and not chat.logprobs:
        raise InvalidRequest(
            f"`top_logprobs` is only taken together with `logprobs`: true; {chat.top_logprobs} was given without it. "
            "Set `logprobs` to true, or leave `top_logprobs` out.",
            param="top_logprobs",
        )


def _log_unknown(document: dict[str, Any]) -> None:
    unknown = document.keys() - set(ChatBody.__struct_fields__) - UNBUILT.keys() - HARMLESS
    if unknown:
        names = ", ".join(ascii(name[:40]) for name in sorted(unknown)[:20])
        log.debug("fields without effect in a chat request: %s", names)
