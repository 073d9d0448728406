"""POST /v1/responses: from a body, past what is kept, to the response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from quart import Response

from server.api.generation.answering import Answering
from server.api.generation.asked import Asked, Caller
from server.api.generation.door import Opened
from server.api.responses.answer import ResponsesAnswer
from server.api.responses.asking import build_asked
from server.api.responses.conversation import Conversation, open_conversation
from server.api.responses.in_flight import Flight, InFlight
from server.api.responses.kept import KeptResponses
from server.api.responses.output import Output
from server.api.responses.resource import Resource
from server.api.responses.store import Kept, ResponseStore
from server.api.responses.tools import Toolbox
from server.api.responses.wire import ResponsesBody, decode_responses
from server.errors import RequestError


class ResponsesEndpoint:
    """Answers with responses, and keeps them."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._store, self._in_flight = ResponseStore(), InFlight()
        self.kept = KeptResponses(self._store, self._in_flight)

    async def answer(self, caller: Caller, body: bytes) -> Response:
        """The whole response, or the stream that has begun. Raises any HomebaseError before a first byte is sent."""
        content_type = caller.headers.get("content-type", "")
        wire = await self._answering.door.decode(body, lambda data: decode_responses(data, content_type))
        conversation = open_conversation(self._store, caller.api_key, wire)
        asked, toolbox = build_asked(caller, len(body) + conversation.kept_bytes, wire, conversation.list_items())
        try:
            return await self._answering.answer(
                asked, lambda opened: self._build_answer(asked, opened, wire, toolbox, conversation)
            )
        except RequestError as error:
            # The door knows the prompt by the name that the chat dialect has for it.
            error.param = "input" if error.param == "messages" else error.param
            raise

    def _build_answer(
        self, asked: Asked, opened: Opened, wire: ResponsesBody, toolbox: Toolbox, conversation: Conversation
    ) -> ResponsesAnswer:
        key, owner = asked.caller.request_id.removeprefix("req-"), asked.caller.api_key
        spell = None if asked.top_logprobs is None else opened.codec.spell
        resource = Resource(f"resp_{key}", opened.model_id, int(time.time()), wire, toolbox)

        def settle(last: msgspec.Raw, output: Sequence[dict[str, Any]]) -> None:
            flight.settle(last)
            if wire.is_kept:
                items = msgspec.json.encode(conversation.input)
                encoded = msgspec.json.encode(output)
                self._store.put(resource.id, Kept(owner, bytes(last), items, encoded, conversation.previous))

        answer = ResponsesAnswer(resource, Output(key, toolbox, spell), settle)
        flight = Flight(owner, answer, opened.life, is_kept=wire.is_kept)
        task = asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        self._in_flight.add(resource.id, flight, task)
        return answer
