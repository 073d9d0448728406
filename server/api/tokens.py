"""POST /tokenize and /detokenize: what the served model makes of a text, and of token ids. No slot is taken.

The shapes are vLLM's; `content` is llama.cpp's name for `prompt`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from quart import Response

from server.api.chat.messages import normalise_messages
from server.api.chat.tools import TOOLS_EXPECTED, ToolDefinition, read_tools
from server.api.chat.wire import EXPECTED as CHAT_EXPECTED
from server.api.chat.wire import Message
from server.api.decoding import convert, decode_object, log_unknown
from server.api.generation.asked import Asked, Caller, ChatPrompt, TextPrompt, ToolRule
from server.api.generation.door import Door
from server.api.generation.sampling import SamplingFields
from server.api.generation.thinking import Thinking
from server.api.services import Services
from server.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)


class TokenizeBody(msgspec.Struct, frozen=True):
    """The body of POST /tokenize: a text, or messages as a chat request has them."""

    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[ToolDefinition] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True):
    """The body of POST /detokenize."""

    tokens: tuple[int, ...]
    model: str | None = None


TOKENIZE_EXPECTED = {
    **{name: words for name, words in CHAT_EXPECTED.items() if name.startswith("messages")},
    **TOOLS_EXPECTED,
    "prompt": "a string",
    "content": "a string",
    "chat_template_kwargs": "an object",
    "model": "a string",
    "return_token_strs": "true or false",
}
DETOKENIZE_EXPECTED = {"tokens": "a list of token ids", "tokens[]": "a token id", "model": "a string"}
"""What each field may be, in words."""


class TokenEndpoints:
    """Answers both."""

    def __init__(self, services: Services, door: Door) -> None:
        self._services, self._door = services, door

    async def tokenize(self, caller: Caller, body: bytes) -> Response:
        """The token ids of a text or of a conversation, and how many of them a request may have."""
        given = await self._door.decode(body, lambda data: _decode(data, TokenizeBody, TOKENIZE_EXPECTED))
        ids = await self._door.encode(_build_asked(caller, len(body), given))
        fields: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": self._services.read_model().effective_context_limit_tokens,
            "tokens": ids,
        }
        if given.return_token_strs:
            spell = self._services.text().spell
            fields["token_strs"] = await self._door.run(
                lambda: [spell(token).decode("utf-8", "replace") for token in ids], len(ids)
            )
        return _answer(fields)

    async def detokenize(self, caller: Caller, body: bytes) -> Response:
        """The text of token ids."""
        given = await self._door.decode(body, lambda data: _decode(data, DetokenizeBody, DETOKENIZE_EXPECTED))
        return _answer({"prompt": await self._door.decode_ids(given.model, given.tokens)})


def _build_asked(caller: Caller, body_bytes: int, given: TokenizeBody) -> Asked:
    text = given.content if given.prompt is None else given.prompt
    if (text is None) == (given.messages is None):
        raise InvalidRequest("Send either `prompt`, a text, or `messages`, a conversation.", param="prompt")
    prompt: ChatPrompt | TextPrompt = TextPrompt(text or "")
    if given.messages is not None:
        tools = read_tools(given.tools, ToolRule())
        prompt = ChatPrompt(normalise_messages(given.messages), tools, Thinking(), given.chat_template_kwargs or {})
    return Asked(caller=caller, body_bytes=body_bytes, model=given.model, prompt=prompt, sampling=SamplingFields())


def _decode(body: bytes, into: type[T], expected: dict[str, str]) -> T:
    document = decode_object(body)
    given = convert(document, into, expected)
    log_unknown(document, into.__struct_fields__)
    return given


def _answer(fields: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(fields), content_type="application/json")
