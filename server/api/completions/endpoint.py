"""POST /v1/completions: from a body to what is asked."""

from __future__ import annotations

import time

from quart import Response

from server.api.completions.shapes import CompletionAnswer
from server.api.completions.wire import CompletionBody, decode_completion, read_prompt
from server.api.generation.answering import Answering
from server.api.generation.asked import Asked, Caller, TextPrompt
from server.api.generation.door import Opened
from server.api.generation.sampling import list_stops


class CompletionEndpoint:
    """Answers completions of a plain text."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def answer(self, caller: Caller, body: bytes) -> Response:
        """The whole completion, or the stream that has begun. Raises any HomebaseError before a first byte is sent."""
        content_type = caller.headers.get("content-type", "")
        given = await self._answering.door.decode(body, lambda data: decode_completion(data, content_type))
        asked = build_asked(caller, len(body), given)
        return await self._answering.answer(asked, lambda opened: _build_answer(asked, opened, given))


def build_asked(caller: Caller, body_bytes: int, given: CompletionBody) -> Asked:
    """What a completion request asks for. Raises InvalidRequest and UnsupportedParameter."""
    return Asked(
        caller=caller,
        body_bytes=body_bytes,
        model=given.model,
        prompt=read_prompt(given.prompt),
        prompt_name="prompt",
        is_streaming=bool(given.stream),
        max_tokens=given.max_tokens,
        sampling=given,
        stops=list_stops(given.stop),
        top_logprobs=given.logprobs,
    )


def _build_answer(asked: Asked, opened: Opened, given: CompletionBody) -> CompletionAnswer:
    assert isinstance(asked.prompt, TextPrompt)
    prompt = asked.prompt
    text = prompt.text if prompt.token_ids is None else opened.codec.decode(prompt.token_ids)
    return CompletionAnswer(
        f"cmpl-{asked.caller.request_id.removeprefix('req-')}",
        opened.model_id,
        int(time.time()),
        echo=text if given.echo else "",
        spell=None if given.logprobs is None else opened.codec.spell,
        wants_usage=given.stream_options is not None and bool(given.stream_options.include_usage),
    )
