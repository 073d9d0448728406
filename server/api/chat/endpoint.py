"""POST /v1/chat/completions: from a body to what is asked."""

from __future__ import annotations

import time

from quart import Response

from server.api.chat.messages import normalise_messages
from server.api.chat.shapes import ChatAnswer
from server.api.chat.tools import read_format, read_tool_rule, read_tools
from server.api.chat.wire import ChatBody, decode_chat
from server.api.generation.answering import Answering
from server.api.generation.asked import Asked, Caller, ChatPrompt
from server.api.generation.door import Opened
from server.api.generation.sampling import list_stops


class ChatEndpoint:
    """Answers chat completions."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def answer(self, caller: Caller, body: bytes) -> Response:
        """The whole answer, or the stream that has begun. Raises any HomebaseError before a first byte is sent."""
        content_type = caller.headers.get("content-type", "")
        chat = await self._answering.door.decode(body, lambda data: decode_chat(data, content_type))
        asked = build_asked(caller, len(body), chat)
        return await self._answering.answer(asked, lambda opened: _build_answer(asked, opened, chat))


def build_asked(caller: Caller, body_bytes: int, chat: ChatBody) -> Asked:
    """What a chat request asks for. Raises InvalidRequest and UnsupportedParameter."""
    rule = read_tool_rule(chat.tool_choice, chat.parallel_tool_calls)
    turns, tools = normalise_messages(chat.messages), read_tools(chat.tools, rule)
    return Asked(
        caller=caller,
        body_bytes=body_bytes,
        model=chat.model,
        prompt=ChatPrompt(turns, tools, chat.wanted_thinking, chat.chat_template_kwargs or {}),
        is_streaming=chat.is_streaming,
        max_tokens=chat.asked_max_tokens,
        max_tokens_name=chat.max_tokens_name,
        sampling=chat,
        stops=list_stops(chat.stop),
        top_logprobs=chat.wanted_logprobs,
        tool_rule=rule,
        format=read_format(chat.response_format),
    )


def _build_answer(asked: Asked, opened: Opened, chat: ChatBody) -> ChatAnswer:
    spell = None if asked.top_logprobs is None else opened.codec.spell
    completion_id = f"chatcmpl-{asked.caller.request_id.removeprefix('req-')}"
    return ChatAnswer(completion_id, opened.model_id, int(time.time()), spell, wants_usage=chat.wants_usage)
