"""The shape of a completion request on the wire, and its strict decoding."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from server.api.chat.wire import StreamOptions
from server.api.decoding import convert, decode_object, log_unknown, show_value
from server.api.generation.asked import TextPrompt
from server.api.generation.sampling import (
    SAMPLING_EXPECTED,
    TOP_LOGPROBS_MOST,
    SamplingFields,
    check_seed,
    check_stops,
    stops_expected,
)
from server.api.generation.unbuilt import HARMLESS, UNBUILT, refuse_unbuilt
from server.errors import InvalidRequest, UnsupportedParameter


class CompletionBody(SamplingFields, frozen=True, kw_only=True):
    """The body of POST /v1/completions: every field that is honoured. null means that it was left out."""

    prompt: str | list[Any]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS_MOST)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    best_of: int | None = None


EXPECTED = {
    "prompt": "a string, or a list of token ids",
    "model": "a string",
    "stream": "true or false",
    "stream_options": 'an object like {"include_usage": true}',
    "stream_options.include_usage": "true or false",
    "max_tokens": "a whole number of at least 1",
    "logprobs": f"a whole number from 0 to {TOP_LOGPROBS_MOST}",
    "echo": "true or false",
    "suffix": "a string",
    "n": "a whole number",
    "best_of": "a whole number",
    **SAMPLING_EXPECTED,
    **stops_expected("stop"),
}
"""What each field may be, in words."""

CHAT_ONLY = frozenset({"best_of"})
"""Of what the chat dialect refuses, that which this one reads itself."""


def decode_completion(body: bytes, content_type: str = "") -> CompletionBody:
    """The completion request in a body. Raises InvalidRequest and UnsupportedParameter."""
    document = decode_object(body, content_type)
    refuse_unbuilt({name: value for name, value in document.items() if name not in CHAT_ONLY})
    given = convert(document, CompletionBody, EXPECTED)
    check_seed(given.seed, document)
    check_stops(given.stop, "stop", document)
    for name in ("n", "best_of"):
        if getattr(given, name) not in (None, 1):
            raise UnsupportedParameter(f"`{name}` must be 1: this server gives one choice per request.", param=name)
    if given.suffix:
        raise UnsupportedParameter(
            "`suffix` is not supported by this server: the model is given what comes before, and only that.",
            param="suffix",
        )
    if given.echo and given.logprobs is not None:
        raise UnsupportedParameter(
            "`echo` together with `logprobs` is not supported by this server: tokens of the prompt are not scored.",
            param="echo",
        )
    log_unknown(document, {*CompletionBody.__struct_fields__, *UNBUILT, *HARMLESS})
    return given


def read_prompt(prompt: str | list[Any], param: str = "prompt") -> TextPrompt:
    """The one prompt of a request: a text or token ids, also as a list with one of them. Raises InvalidRequest."""
    match prompt:
        case str():
            return _check_given(TextPrompt(prompt), bool(prompt), param)
        case [str() | list() as only]:
            return read_prompt(only, f"{param}[0]")
        case [str() | list(), *_]:
            raise UnsupportedParameter(
                f"`{param}` may hold one prompt; {len(prompt):,} were given. Send one request for each.", param=param
            )
        case _:
            return _check_given(TextPrompt(token_ids=_read_ids(prompt, param)), bool(prompt), param)


def _read_ids(prompt: list[Any], param: str) -> tuple[int, ...]:
    try:
        return msgspec.convert(prompt, tuple[int, ...], strict=True)
    except msgspec.ValidationError:
        wrong = next(index for index, each in enumerate(prompt) if not isinstance(each, int) or isinstance(each, bool))
        raise InvalidRequest(
            f"`{param}[{wrong}]` must be a token id; {show_value(prompt[wrong])} was given.", param=f"{param}[{wrong}]"
        ) from None


def _check_given(prompt: TextPrompt, is_given: bool, param: str) -> TextPrompt:
    if not is_given:
        raise InvalidRequest(f"`{param}` is empty; the model needs a text, or token ids, to go on from.", param=param)
    return prompt
