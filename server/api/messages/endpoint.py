"""POST /v1/messages and /v1/messages/count_tokens: from a body to what is asked."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from quart import Response

from server.api.failures import ANTHROPIC_ID_HEADER
from server.api.generation.answering import Answering
from server.api.generation.asked import Asked, Caller, ChatPrompt, Format
from server.api.generation.door import Opened
from server.api.generation.sampling import list_stops
from server.api.messages.conversation import build_turns
from server.api.messages.shapes import MessageAnswer
from server.api.messages.tools import read_format, read_tool_rule, read_tools
from server.api.messages.wire import MessagesBody, decode_messages
from server.snapshot import ModelView


class MessagesEndpoint:
    """Answers Messages requests, and counts their tokens."""

    def __init__(self, answering: Answering, read_model: Callable[[], ModelView]) -> None:
        self._answering, self._read_model = answering, read_model

    async def answer(self, caller: Caller, body: bytes) -> Response:
        """The whole answer, or the stream that has begun. Raises any HomebaseError before a first byte is sent."""
        given = await self._decode(caller, body)
        asked = build_asked(caller, len(body), given, self._read_model().context_limit_tokens)
        response = await self._answering.answer(asked, lambda opened: self._build_answer(asked, opened, given))
        return _sign(response, caller)

    async def count(self, caller: Caller, body: bytes) -> Response:
        """How long the prompt of such a request is. Takes no slot. Raises as `answer` does."""
        given = await self._decode(caller, body)
        asked = build_asked(caller, len(body), given, is_answered=False)
        counted = msgspec.json.encode({"input_tokens": await self._answering.door.count(asked)})
        return _sign(Response(counted, content_type="application/json"), caller)

    async def _decode(self, caller: Caller, body: bytes) -> MessagesBody:
        content_type = caller.headers.get("content-type", "")
        return await self._answering.door.decode(body, lambda data: decode_messages(data, content_type))

    def _build_answer(self, asked: Asked, opened: Opened, given: MessagesBody) -> MessageAnswer:
        return MessageAnswer(
            asked.caller.request_id,
            # As it was asked for: Claude Code leaves out of its history what a model of another name has thought.
            asked.model or opened.model_id,
            len(opened.token_ids),
            self._read_model().effective_context_limit_tokens,
            hides_thoughts=given.hides_thoughts,
        )


def build_asked(
    caller: Caller, body_bytes: int, given: MessagesBody, context_limit_tokens: int = 0, *, is_answered: bool = True
) -> Asked:
    """What a Messages request asks for. Raises InvalidRequest and UnsupportedParameter.

    `max_tokens` is no wish in this dialect but a field that must be sent, so clients send a large constant: one that
    exceeds the model's whole context means all of it.
    """
    rule = read_tool_rule(given.tool_choice)
    turns = build_turns(given.system, given.messages, must_be_answered=is_answered)
    tools = read_tools(given.tools, rule)
    return Asked(
        caller=caller,
        body_bytes=body_bytes,
        model=given.model,
        prompt=ChatPrompt(turns, tools, given.wanted_thinking, given.chat_template_kwargs or {}),
        is_streaming=given.is_streaming,
        max_tokens=_bound_max_tokens(given.max_tokens, context_limit_tokens),
        sampling=given,
        stops=list_stops(given.stop_sequences),
        tool_rule=rule,
        format=_read_format(given),
    )


def _read_format(given: MessagesBody) -> Format:
    config = given.output_config
    if config is not None and config.format is not None:
        return read_format(config.format, "output_config.format")
    return read_format(given.output_format, "output_format")


def _bound_max_tokens(given: int | None, context_limit_tokens: int) -> int | None:
    """The limit is 0 while it is not known, and then the request will be refused anyway."""
    return min(given, context_limit_tokens) if given and context_limit_tokens else given


def _sign(response: Response, caller: Caller) -> Response:
    response.headers[ANTHROPIC_ID_HEADER] = caller.request_id
    return response
