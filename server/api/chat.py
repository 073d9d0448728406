"""POST /v1/chat/completions: from a body to an admitted stream, and from that to an answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
from quart import Response

from server.admission.decide import Asked
from server.admission.sessions import BodyFacts, Identity, identify
from server.api.chat_plan import check_model, exceed_context, plan_max_tokens
from server.api.chat_shapes import ChatAnswer
from server.api.chat_stream import STREAM_HEADERS, ChatStream
from server.api.failures import refusal_status_of
from server.api.messages import first_text, normalise_messages
from server.api.reply import Reply
from server.api.services import Services, TokenStream
from server.api.sse import Outbox
from server.api.stream_life import StreamLife
from server.api.wire import ChatBody, decode_chat
from server.engine.request import EngineRequest, Sampling
from server.errors import ContextLengthExceeded, HomebaseError, InvalidRequest, Refusal, StreamStopped
from server.events import Lane, Refused
from server.snapshot import ModelView
from server.text.pool import TextPool
from server.text.tokenizer import TextCodec

PRIORITY: dict[Lane, int] = {"parent": 0, "unknown": 0, "child": 1, "auxiliary": 1}
"""Whose prompts are read first when several wait: a parent is what a person waits for."""

LARGE_BODY_BYTES = 64 * 1024
"""A larger body is decoded beside the loop, and is refused without tokenizing it when no slot is free: 100,000
tokens take 150 to 300 ms (tokenizers 0.23.3, 2026-11, x86-64), and a refusal should take less than 100."""

ENCODE_S = 60.0
"""For a prompt to be made of the messages, the wait for a thread included. A million tokens take 3 s, and a chat
template that loops is ended after `server.text.tokenizer.RENDER_S`."""

log = logging.getLogger(__name__)


class Caller(msgspec.Struct, frozen=True):
    """What of an HTTP request, other than its body, the answer depends on."""

    request_id: str
    headers: Mapping[str, str]
    """Names in lower case."""
    api_key: str
    peer: str


class ChatRequest(msgspec.Struct, frozen=True):
    """A chat request that is well formed; not yet tokenized."""

    caller: Caller
    body_bytes: int
    chat: ChatBody
    turns: list[dict[str, Any]]
    identity: Identity
    model: ModelView

    def build_asked(self, prompt_tokens: int, output_tokens: int = 0) -> Asked:
        """What admission is asked."""
        return Asked(self.identity.lane, prompt_tokens, self.chat.asked_max_tokens, output_tokens)


class Prompt(msgspec.Struct, frozen=True):
    """A prompt that fits, and what may be generated after it."""

    token_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    boundaries: tuple[int, ...]
    """Where its messages begin."""


class ChatEndpoint:
    """Answers chat completions."""

    def __init__(self, services: Services, pool: TextPool) -> None:
        self._services, self._pool = services, pool

    async def answer(self, caller: Caller, body: bytes) -> Response:
        """The whole answer, or the stream that has begun. Raises any HomebaseError before a first byte is sent.

        Runs in the task that also sends the response: that task's end is how a lost connection is noticed.
        """
        request = await self._read(caller, body)
        life = await self._open(request)
        answer = self._build_answer(request)
        if not request.chat.is_streaming:
            return Response(await _collect(life, answer), content_type="application/json")
        outbox = Outbox(self._services.read_policy().server.keep_alive_s)
        stream = ChatStream(life, answer, outbox, wants_usage=request.chat.wants_usage)
        response = Response(stream.frames(), headers=STREAM_HEADERS)
        response.timeout = None  # Quart would end it after 60 s
        return response

    def _build_answer(self, request: ChatRequest) -> ChatAnswer:
        spell = None if request.chat.wanted_logprobs is None else self._services.text().spell
        completion_id = f"chatcmpl-{request.caller.request_id.removeprefix('req-')}"
        return ChatAnswer(completion_id, request.model.id, int(time.time()), spell)

    async def _read(self, caller: Caller, body: bytes) -> ChatRequest:
        content_type = caller.headers.get("content-type", "")
        if len(body) > LARGE_BODY_BYTES:
            chat = await self._pool.run(lambda: decode_chat(body, content_type))
        else:
            chat = decode_chat(body, content_type)
        model = self._services.read_model()
        check_model(chat.model, model)
        turns = normalise_messages(chat.messages)
        facts = BodyFacts(first_text(turns, "system"), first_text(turns, "user"), caller.api_key, caller.peer)
        return ChatRequest(caller, len(body), chat, turns, identify(caller.headers, facts), model)

    async def _open(self, request: ChatRequest) -> StreamLife:
        """Tokenize, take a slot and start. A refusal is counted, with the prompt's length where it is known."""
        prompt: Prompt | None = None
        try:
            prompt = await self._tokenize(request)
            return self._start(request, prompt)
        except Refusal as refusal:
            self._count(refusal, request, len(prompt.token_ids) if prompt else None)
            raise

    async def _tokenize(self, request: ChatRequest) -> Prompt:
        codec, chat, limit = self._services.text(), request.chat, request.model.effective_context_limit_tokens
        sampling = chat.build_sampling(codec.vocab_size)
        self._refuse_unread(request, limit)
        ids = await self._encode(request, codec, limit)
        max_tokens = plan_max_tokens(len(ids), chat.asked_max_tokens, chat.max_tokens_name, request.model)
        return Prompt(tuple(ids), max_tokens, sampling, codec.find_boundaries(ids))

    async def _encode(self, request: ChatRequest, codec: TextCodec, limit_tokens: int) -> list[int]:
        try:
            async with asyncio.timeout(ENCODE_S):
                return await self._pool.run(lambda: codec.encode_chat(request.turns, limit_tokens))
        except ContextLengthExceeded as exceeded:
            raise exceed_context(exceeded.prompt_tokens, request.model, at_least=exceeded.at_least) from None
        except TimeoutError:
            told = (
                f"No prompt could be made of these messages within {ENCODE_S:g} s; the model's chat template may loop."
            )
            log.warning("%s", told, extra={"request_id": request.caller.request_id})
            raise InvalidRequest(told, param="messages") from None

    def _refuse_unread(self, request: ChatRequest, limit_tokens: int) -> None:
        """Refuse a large request at once when there is no slot.

        Not one so large that it may exceed the context limit: that is a fault for good, and must be told as such.
        """
        if LARGE_BODY_BYTES < request.body_bytes <= 2 * limit_tokens:
            refusal = self._services.admission.find_refusal(request.build_asked(0), self._services.read_policy().policy)
            if refusal is not None:
                raise refusal

    def _start(self, request: ChatRequest, prompt: Prompt) -> StreamLife:
        """Take a slot and hand over to the engine. No await in here: two requests never see the same slot free."""
        services, codec = self._services, self._services.text()
        asked = request.build_asked(len(prompt.token_ids), prompt.max_tokens)
        with ExitStack() as undo:
            permit = services.admission.admit(asked, services.read_policy().policy)
            undo.callback(permit.release)
            granted = msgspec.structs.replace(prompt, max_tokens=permit.max_tokens)
            tokens = services.dispatcher().submit(_build_engine_request(request, granted, codec), permit.release)
            undo.pop_all()
        reply = Reply(codec.build_detokenizer(), request.chat.stops, len(prompt.token_ids))
        return self._follow(request, granted, tokens, reply)

    def _follow(self, request: ChatRequest, prompt: Prompt, tokens: TokenStream, reply: Reply) -> StreamLife:
        identity, model = request.identity, request.model
        self._services.telemetry.stream_opened(
            request_id=request.caller.request_id,
            session=identity.session,
            parent_session=identity.parent_session,
            lane=identity.lane,
            client=identity.client,
            model=model.id,
            prompt_tokens=len(prompt.token_ids),
            cached_tokens=0,
            max_tokens=prompt.max_tokens,
            context_limit_tokens=model.effective_context_limit_tokens,
            streaming=request.chat.is_streaming,
        )
        life = StreamLife(request.caller.request_id, tokens, reply, self._services.telemetry)
        task = asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        life.follow(task)
        return life

    def _count(self, refusal: Refusal, request: ChatRequest, prompt_tokens: int | None) -> None:
        status = refusal_status_of(refusal, self._services.read_policy().policy.refusal_status)
        self._services.telemetry.refused(
            Refused(
                time_s=time.time(),
                request_id=request.caller.request_id,
                code=refusal.code,
                message=refusal.message,
                status=status,
                retry_after_s=None if status == 400 else refusal.retry_after_s,
                limit=refusal.limit,
                used=refusal.used,
                session=request.identity.session,
                lane=request.identity.lane,
                client=request.identity.client,
                prompt_tokens=prompt_tokens,
                max_tokens=request.chat.asked_max_tokens,
            )
        )


def _build_engine_request(request: ChatRequest, prompt: Prompt, codec: TextCodec) -> EngineRequest:
    return EngineRequest(
        request.caller.request_id,
        prompt.token_ids,
        prompt.max_tokens,
        prompt.sampling,
        codec.stop_ids,
        priority=PRIORITY[request.identity.lane],
        top_logprobs=request.chat.wanted_logprobs,
        boundaries=prompt.boundaries,
    )


async def _collect(life: StreamLife, answer: ChatAnswer) -> bytes:
    """The whole answer, when it is complete."""
    texts: list[str] = []
    scores: list[msgspec.Raw] = []
    try:
        async for event in life.tokens:
            piece = life.reply.fold(event)
            texts.append(piece.text)
            scores += answer.encode_scores(piece.scores)
            if life.reply.finish_reason is not None:
                life.complete()
                return answer.build_completion("".join(texts), scores, life.reply.finish_reason, life.reply.usage)
        raise StreamStopped("This stream ended without a result.")
    except HomebaseError as error:
        life.fail(error)
        raise
