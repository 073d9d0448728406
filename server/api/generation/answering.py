"""Answers what is asked, whole or as a stream."""

from __future__ import annotations

from collections.abc import Callable

from quart import Response

from server.admission.families import read_product
from server.api.generation.answer import Answer
from server.api.generation.asked import Asked
from server.api.generation.door import Door, Opened
from server.api.generation.stream import STREAM_HEADERS, AnswerStream, collect
from server.api.services import Services


class Answering:
    """What the endpoints of all dialects share."""

    def __init__(self, services: Services, door: Door) -> None:
        self.door = door
        self._services = services

    async def answer(self, asked: Asked, build_answer: Callable[[Opened], Answer]) -> Response:
        """The whole answer, or the stream that has begun. Raises any HomebaseError before a first byte is sent.

        `build_answer` gives the dialect's writer for the stream that was opened.
        """
        opened = await self.door.open(asked)
        answer = build_answer(opened)
        if not asked.is_streaming:
            return Response(await collect(opened.life, answer), content_type="application/json")
        policy = self._services.read_policy().server
        stream = AnswerStream(opened.life, answer, policy.keep_alive_s)
        if read_product(asked.caller.headers.get("user-agent", "")) in policy.hold_headers_for:
            await stream.hold()
        response = Response(stream.frames(), headers=STREAM_HEADERS)
        response.timeout = None  # Quart would end it after 60 s
        return response
