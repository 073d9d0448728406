"""POST /v1/responses: from a body, past what is kept, to the response."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator, Sequence
from typing import Any

import msgspec
from quart import Response

from server.api.generation.answering import Answering
from server.api.generation.asked import Asked, Caller
from server.api.generation.door import Opened
from server.api.responses.answer import ResponsesAnswer
from server.api.responses.asking import build_asked
from server.api.responses.conversation import Conversation, Sources, find_sources, open_conversation
from server.api.responses.in_flight import Flight, InFlight
from server.api.responses.kept import KeptResponses
from server.api.responses.output import Output
from server.api.responses.resource import Resource
from server.api.responses.store import Kept, ResponseStore
from server.api.responses.tools import Toolbox
from server.api.responses.wire import ResponsesBody, decode_responses
from server.errors import InvalidRequest, RequestError


class Turn(msgspec.Struct, frozen=True):
    """One request, read."""

    wire: ResponsesBody
    conversation: Conversation
    asked: Asked
    toolbox: Toolbox
    items: bytes
    """The request's own input, as it is kept."""


class ResponsesEndpoint:
    """Answers with responses, and keeps them."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._store, self._in_flight = ResponseStore(), InFlight()
        self.kept = KeptResponses(self._store, self._in_flight, answering.door.run)

    async def answer(self, caller: Caller, body: bytes) -> Response:
        """The whole response, or the stream that has begun. Raises any HomebaseError before a first byte is sent."""
        with _in_this_dialect():
            turn = await self._read(caller, body)
            return await self._answering.answer(turn.asked, lambda opened: self._build_answer(turn, opened))

    async def count(self, caller: Caller, body: bytes) -> Response:
        """How many tokens the prompt of such a request has; it takes no slot. Raises as `answer` does."""
        with _in_this_dialect():
            turn = await self._read(caller, body)
            counted = {"object": "response.input_tokens", "input_tokens": await self._answering.door.count(turn.asked)}
            return Response(msgspec.json.encode(counted), content_type="application/json")

    async def _read(self, caller: Caller, body: bytes) -> Turn:
        content_type = caller.headers.get("content-type", "")
        wire = await self._answering.door.decode(body, lambda data: decode_responses(data, content_type))
        sources = find_sources(self._store, caller.owner, wire)
        nbytes = len(body) + sources.kept_bytes
        return await self._answering.door.run(lambda: _read_turn(caller, nbytes, wire, sources), nbytes)

    def _build_answer(self, turn: Turn, opened: Opened) -> ResponsesAnswer:
        caller, wire = turn.asked.caller, turn.wire
        key, owner = caller.request_id.removeprefix("req-"), caller.owner
        spell = None if turn.asked.top_logprobs is None else opened.codec.spell
        resource = Resource(f"resp_{key}", opened.model_id, int(time.time()), wire, turn.toolbox)

        def settle(last: msgspec.Raw, output: Sequence[dict[str, Any]]) -> None:
            flight.settle(last)
            if wire.is_kept:
                written = msgspec.json.encode(output)
                self._store.put(resource.id, Kept(owner, bytes(last), turn.items, written, turn.conversation.previous))

        answer = ResponsesAnswer(resource, Output(key, turn.toolbox, spell), settle)
        flight = Flight(owner, answer, opened.life, is_kept=wire.is_kept)
        task = asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        self._in_flight.add(resource.id, flight, task)
        return answer


def _read_turn(caller: Caller, nbytes: int, wire: ResponsesBody, sources: Sources) -> Turn:
    """Raises InvalidRequest and UnsupportedParameter."""
    conversation = open_conversation(sources, wire)
    asked, toolbox = build_asked(caller, nbytes, wire, conversation.list_items())
    # Now, and not at the end: by then there would be nobody left to be told that it cannot be written.
    items = msgspec.json.encode(conversation.input) if wire.is_kept else b""
    return Turn(wire, conversation, asked, toolbox, items)


@contextlib.contextmanager
def _in_this_dialect() -> Generator[None]:
    """Errors of a prompt, which the door names as the chat dialect does, by the name that they have here."""
    try:
        yield
    except RequestError as error:
        error.param = "input" if error.param == "messages" else error.param
        raise
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
