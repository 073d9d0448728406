"""From what is asked to a stream in the engine: tokenized, admitted, started. The same for every dialect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import msgspec

from server.admission.clients import find_client_policy
from server.admission.decide import Asked as Wanted
from server.admission.lineage import Spent
from server.admission.place import Place
from server.admission.sessions import BodyFacts, Identity, identify
from server.admission.slots import Permit
from server.admission.spawns import SpawnCall, find_spawn_prompts
from server.api.generation.asked import Asked, ChatPrompt, TextPrompt
from server.api.generation.entering import count_refusal, enter
from server.api.generation.plan import check_model, exceed_context, narrow_context, plan_max_tokens
from server.api.generation.prompt import build_guide, build_reader, build_sampling, encode_prompt
from server.api.generation.reply import Reply
from server.api.generation.stream_life import StreamLife
from server.api.generation.turns import first_text, list_opening_texts
from server.api.services import Services, TokenStream
from server.engine.guide import Guide
from server.engine.request import EngineRequest, Sampling
from server.errors import ContextLengthExceeded, InvalidRequest, Refusal
from server.events import Lane, Outcome
from server.snapshot import ModelView
from server.telemetry import StreamIdentity
from server.text.pool import TextPool
from server.text.tokenizer import EncodedPrompt, TextCodec
from server.upstreams.routing import resolve_alias

T = TypeVar("T")

PRIORITY: dict[Lane, int] = {"parent": 0, "unknown": 0, "child": 1, "auxiliary": 1}
"""Whose prompts are read first when several wait: a parent is what a person waits for."""

LARGE_BODY_BYTES = 64 * 1024
"""A larger body is decoded beside the loop, and is refused without tokenizing it when no slot is free: 100,000
tokens take 150 to 300 ms (tokenizers 0.23.3, 2026-11, x86-64), and a refusal should take less than 100."""

ENCODE_S = 60.0
"""For a prompt to be made of the messages, the wait for a thread included. A million tokens take 3 s, and a chat
template that loops is ended after `server.text.tokenizer.RENDER_S`."""

COUNT_CHARS = 4_000_000
COUNT_CHARS_PER_TOKEN = 8
"""What a count takes: so many characters, or so many to a token of the context limit where that is more, which no
prompt that fits should have. Four million letters took 2 s and 540 MB (tokenizers 0.23.3, 2026-11, x86-64); 28
million in one word held the threads of the text for minutes."""

log = logging.getLogger(__name__)


class Knock(msgspec.Struct, frozen=True):
    """A request at the door: well formed, for the served model, and it is known who asks."""

    asked: Asked
    identity: Identity
    place: Place
    """The same with what earlier requests tell of it."""
    model: ModelView

    def build_wanted(self, prompt_tokens: int, output_tokens: int = 0) -> Wanted:
        """What admission is asked."""
        request_id = self.asked.caller.request_id
        return Wanted(self.place, prompt_tokens, self.asked.max_tokens, output_tokens, request_id)


class Prompt(msgspec.Struct, frozen=True):
    """A prompt that fits, and what may be generated after it."""

    token_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    boundaries: tuple[int, ...]
    """Where its messages begin."""
    opens_thought: bool
    """True when the answer begins in a thought."""
    guide: Guide | None = None
    """What the answer is held to."""


class Opened(msgspec.Struct, frozen=True):
    """A stream that has begun."""

    life: StreamLife
    model_id: str
    """The served model's own id, whatever it was called in the request."""
    token_ids: tuple[int, ...]
    """The prompt."""
    codec: TextCodec


class Door:
    """Lets requests in, one after another."""

    def __init__(self, services: Services, pool: TextPool) -> None:
        self._services, self._pool = services, pool

    async def decode(self, body: bytes, read: Callable[[bytes], T]) -> T:
        """What `read` makes of a body; a large one is read beside the loop."""
        return await self.run(lambda: read(body), len(body))

    async def run(self, work: Callable[[], T], nbytes: int) -> T:
        """The result of `work` on so many bytes; on many it is done beside the loop."""
        return await self._pool.run(work) if nbytes > LARGE_BODY_BYTES else work()

    async def open(self, asked: Asked) -> Opened:
        """Tokenize, take a slot and start. A refusal is counted, with the prompt's length where it is known.

        Raises any HomebaseError. Runs in the task that also sends the response: that task's end is how a lost
        connection is noticed.
        """
        knock, prompt = self._narrow(self._look_at(asked)), None
        self._services.came(knock.place)
        self._services.lineage.arrived(knock.place)
        try:
            prompt = await self._tokenize(knock)
            return self._start(knock, prompt, await self._enter(knock, prompt))
        except ContextLengthExceeded as error:
            error.param = asked.prompt_name
            raise
        except Refusal as refusal:
            count_refusal(
                self._services,
                refusal,
                asked.caller,
                knock.place,
                model=knock.model.id,
                prompt_tokens=len(prompt.token_ids) if prompt else None,
                max_tokens=asked.max_tokens,
            )
            raise
        finally:
            self._services.lineage.left(knock.place)

    async def encode(self, asked: Asked) -> tuple[int, ...]:
        """The prompt's token ids, more than the context limit too: no slot is taken.

        Raises as `open` does for a prompt that cannot be made, and InvalidRequest for a text that is far too long.
        """
        knock, codec = self._look_at(asked), self._services.text()
        limit = max(COUNT_CHARS, COUNT_CHARS_PER_TOKEN * knock.model.effective_context_limit_tokens)
        return (await self._pool.run_aside(lambda: encode_prompt(asked, codec, limit_chars=limit))).token_ids

    async def count(self, asked: Asked) -> int:
        """How many tokens the prompt has."""
        return len(await self.encode(asked))

    async def decode_ids(self, model: str | None, token_ids: tuple[int, ...]) -> str:
        """The text of token ids. Raises UnknownModel, InvalidRequest for an id out of range, Refusal while loading."""
        check_model(self._resolve(model), self._services.read_model())
        codec = self._services.text()
        return await self._pool.run(lambda: codec.decode(token_ids))

    def _resolve(self, model: str | None) -> str | None:
        """What an alias stands for."""
        return resolve_alias(model, self._services.read_policy().aliases) if model else model

    def _look_at(self, asked: Asked) -> Knock:
        model = self._services.read_model()
        check_model(self._resolve(asked.model), model)
        caller, prompt = asked.caller, asked.prompt
        turns = prompt.turns if isinstance(prompt, ChatPrompt) else ()
        if isinstance(prompt, ChatPrompt) and not turns:
            raise InvalidRequest(
                f"`{asked.prompt_name}` holds no text at all; send at least one message that says something.",
                param=asked.prompt_name,
            )
        opening = _describe_text(prompt) if isinstance(prompt, TextPrompt) else first_text(turns, "user")
        facts = BodyFacts(first_text(turns, "system"), opening, caller.api_key, caller.peer, caller.key_name)
        identity, has_tools = identify(caller.headers, facts), isinstance(prompt, ChatPrompt) and bool(prompt.tools)
        place = self._services.lineage.place(identity, list_opening_texts(turns), has_tools)
        return Knock(asked, identity, place, model)

    def _narrow(self, knock: Knock) -> Knock:
        """With the context limit that holds for who asks."""
        policy, place = self._services.read_policy().policy, knock.place
        own = find_client_policy(policy, place.key, place.client)
        return msgspec.structs.replace(knock, model=narrow_context(knock.model, own))

    async def _tokenize(self, knock: Knock) -> Prompt:
        codec, asked, limit = self._services.text(), knock.asked, knock.model.effective_context_limit_tokens
        sampling = build_sampling(asked, codec)
        self._refuse_unread(knock, limit)
        encoded = await self._encode(knock, codec, limit)
        ids = encoded.token_ids
        max_tokens = plan_max_tokens(len(ids), asked.max_tokens, asked.max_tokens_name, knock.model)
        guide = await self._pool.run(lambda: build_guide(asked, codec, encoded))
        return Prompt(ids, max_tokens, sampling, codec.find_boundaries(ids), encoded.opens_thought, guide)

    async def _encode(self, knock: Knock, codec: TextCodec, limit_tokens: int) -> EncodedPrompt:
        asked, request_id = knock.asked, knock.asked.caller.request_id
        try:
            async with asyncio.timeout(ENCODE_S):
                return await self._pool.run(lambda: encode_prompt(asked, codec, limit_tokens))
        except ContextLengthExceeded as exceeded:
            raise exceed_context(exceeded.prompt_tokens, knock.model, at_least=exceeded.is_at_least) from None
        except TimeoutError:
            told = (
                f"No prompt could be made of these messages within {ENCODE_S:g} s; the model's chat template may loop."
            )
            log.warning("%s", told, extra={"request_id": request_id})
            raise InvalidRequest(told, param="messages") from None

    def _refuse_unread(self, knock: Knock, limit_tokens: int) -> None:
        """Refuse a large request at once when there is no slot, and any when memory has no room for a stream.

        Not one so large that it may exceed the context limit: that is a fault for good, and must be told as such. Nor
        one that may wait for a slot.
        """
        if not limit_tokens or LARGE_BODY_BYTES < knock.asked.body_bytes <= 2 * limit_tokens:
            policy = self._services.read_policy().policy
            refusal = self._services.admission.find_refusal(knock.build_wanted(0), policy)
            if refusal is not None:
                raise refusal

    async def _enter(self, knock: Knock, prompt: Prompt) -> Permit:
        services = self._services
        services.dispatcher()  # nobody stands in line for an engine that cannot serve
        wanted = knock.build_wanted(len(prompt.token_ids), prompt.max_tokens)
        return await enter(services, wanted, _identify_stream(knock, prompt))

    def _start(self, knock: Knock, prompt: Prompt, permit: Permit) -> Opened:
        """Hand over to the engine. No await since the slot was given: it is never held by nobody."""
        services, codec, asked = self._services, self._services.text(), knock.asked
        with ExitStack() as undo:
            undo.callback(permit.release)
            undo.callback(services.telemetry.stream_left, asked.caller.request_id)
            granted = msgspec.structs.replace(prompt, max_tokens=permit.max_tokens)
            tokens = services.dispatcher().submit(_build_engine_request(knock, granted, codec), permit.release)
            undo.pop_all()
        reply = Reply(
            codec.build_detokenizer(),
            build_reader(asked, codec, opens_thought=prompt.opens_thought),
            len(prompt.token_ids),
            stops=asked.stops,
            parallel_calls=asked.tool_rule.parallel,
        )
        life = self._follow(knock, granted, tokens, reply)
        return Opened(life, knock.model.id, prompt.token_ids, codec)

    def _follow(self, knock: Knock, prompt: Prompt, tokens: TokenStream, reply: Reply) -> StreamLife:
        asked, place = knock.asked, knock.place
        self._services.telemetry.stream_opened(asked.caller.request_id, _identify_stream(knock, prompt))
        self._services.lineage.started(asked.caller.request_id, place)
        on_end = partial(self._note_end, knock, reply)
        life = StreamLife(asked.caller.request_id, tokens, reply, self._services.telemetry, on_end)
        task = asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        life.follow(task)
        return life

    def _note_end(self, knock: Knock, reply: Reply, outcome: Outcome) -> None:
        """Before the client is told of the end, so that a child that it starts at once is recognised."""
        lineage, usage = self._services.lineage, reply.usage
        if outcome in ("stop", "length"):
            calls = (SpawnCall(call.name, call.arguments) for call in reply.transcript.calls)
            lineage.spawned(knock.identity, find_spawn_prompts(calls, self._services.read_policy().policy.spawn_tools))
        spent = Spent(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        lineage.ended(knock.asked.caller.request_id, outcome, spent)


def _identify_stream(knock: Knock, prompt: Prompt) -> StreamIdentity:
    place, model, asked = knock.place, knock.model, knock.asked
    return StreamIdentity(
        session=place.session,
        parent_session=place.parent_session,
        lane=place.lane,
        client=place.client,
        key=place.key,
        depth=place.depth,
        family=place.family,
        model=model.id,
        prompt_tokens=len(prompt.token_ids),
        cached_tokens=0,
        max_tokens=prompt.max_tokens,
        context_limit_tokens=model.effective_context_limit_tokens,
        streaming=asked.is_streaming,
        arrived_s=asked.caller.arrived_s,
    )


def _describe_text(prompt: TextPrompt) -> str:
    """How a prompt without messages begins."""
    return prompt.text[:1000] if prompt.token_ids is None else str(prompt.token_ids[:200])


def _build_engine_request(knock: Knock, prompt: Prompt, codec: TextCodec) -> EngineRequest:
    return EngineRequest(
        knock.asked.caller.request_id,
        prompt.token_ids,
        prompt.max_tokens,
        prompt.sampling,
        codec.stop_ids,
        priority=PRIORITY[knock.place.lane],
        top_logprobs=knock.asked.top_logprobs,
        boundaries=prompt.boundaries,
        guide=prompt.guide,
    )
