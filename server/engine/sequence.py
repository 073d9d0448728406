"""One sequence in the engine: its request, its model state, and how far it has come. Engine thread only."""

from __future__ import annotations

from collections.abc import Sequence as Items

import mlx.core as mx
from msgspec.structs import replace

from server.engine.drafter import Drafter, MtpSetting
from server.engine.drafting import DraftTrail
from server.engine.logprobs import measure_logprobs
from server.engine.mask import Mask
from server.engine.request import EngineRequest
from server.engine.sampler import Drawn, TokenSampler
from server.engine.scheduler import Need, Turn
from server.engine.shaping import build_shaper
from server.engine.sharing import Prompt, Share
from server.errors import SequenceFailed
from server.events import Outcome, PromptLookedUp
from server.models.cache import ModelFacts, SequenceState, ServedModel


class Sequence:
    """A request being generated. Dropping it drops everything that the model remembers of it."""

    def __init__(self, request: EngineRequest, vocab_size: int, came_step: int = -1) -> None:
        self.request = request
        self._sampler = TokenSampler(request.sampling, vocab_size)
        self._shaper = build_shaper(request.sampling, request.prompt_ids, vocab_size)
        self._mask = None if request.guide is None else Mask(request.guide, vocab_size)
        self.drafter = Drafter()
        self.prefilled_tokens = 0
        """Prompt tokens in the state."""
        self._computed_tokens = 0
        self.emitted_tokens = 0
        self.common_tokens: dict[str, int] = {}
        """How many of the prompt's first tokens are also those of each prompt that was waiting before."""
        self.is_new = True
        """Until it was looked up what of its prompt is cached."""
        self.looked_up: PromptLookedUp | None = None
        """What was found then; None while the prefix cache is off."""
        self.share: Share | None = None
        """Whose state it was last told to wait for."""
        self.points: tuple[int, ...] = ()
        """Where its prefill stops for the prefix cache, ascending."""
        self._emitted_ids: list[int] = []
        self._state: SequenceState | None = None
        self._last_token = -1
        self._came_step, self._last_chunk_step = came_step, -1

    @property
    def prompt_tokens_left(self) -> int:
        """Prompt tokens that are not in the state."""
        return len(self.request.prompt_ids) - self.prefilled_tokens

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens in the state that were not computed for this sequence."""
        return self.prefilled_tokens - self._computed_tokens

    @property
    def need(self) -> Need:
        """What the scheduler has to know."""
        room = self.request.max_tokens - self.emitted_tokens - 1  # a round emits one more than it drafts
        return Need(
            self.request.id,
            self.prompt_tokens_left,
            self._last_chunk_step,
            priority=self.request.priority,
            context_tokens=0 if self._state is None else self._state.offset,
            draft_tokens=0 if self.prompt_tokens_left else min(self.drafter.depth, room),
            primes=self.drafter.trail is not None,
            chunk_tokens_at_most=next(
                (p - self.prefilled_tokens for p in self.points if p > self.prefilled_tokens), None
            ),
            came_step=self._came_step,
        )

    @property
    def prompt(self) -> Prompt:
        """What there is to know for sharing it."""
        return Prompt(
            self.request.id,
            len(self.request.prompt_ids),
            self.prefilled_tokens,
            self.common_tokens,
            can_lead=self._state is None or self.drafter.has_missed_nothing,
        )

    @property
    def state(self) -> SequenceState:
        """The model state; there once `open` was called."""
        assert self._state is not None, "the sequence is open"
        return self._state

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens in the state."""
        known = (*self.request.prompt_ids, *self._emitted_ids) if self._emitted_ids else self.request.prompt_ids
        return known[: 0 if self._state is None else self._state.offset]

    def open(self, model: ServedModel, setting: MtpSetting) -> None:
        """Build what the model remembers of it, at its first turn."""
        if self._state is None:
            self._state = model.build_state()
            self.drafter.begin(model.mtp, setting, model.facts.no_mtp_because)

    def follow(self, setting: MtpSetting) -> None:
        """The policy of now, once it is open."""
        if self._state is not None:
            self.drafter.follow(setting)

    def go_on_from(self, leader: Sequence) -> None:
        """Take up where another sequence is, whose state holds the first tokens of this prompt and no other."""
        done = leader.prefilled_tokens
        drafter = leader.drafter.fork(self.request.prompt_ids[done])
        self._state, self.drafter, self.prefilled_tokens = leader.state.fork(), drafter, done

    def resume(self, state: SequenceState, trail: DraftTrail | None, model: ServedModel, setting: MtpSetting) -> None:
        """Begin with the first tokens of the prompt in the state, and the head where it stood there."""
        self.open(model, setting)
        self._state, self.prefilled_tokens = state, state.offset
        if self.drafter.trail is not None:
            self.drafter.trail = trail

    def inputs(self, turn: Turn, drafted: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that the model reads in a turn: the next prompt tokens, or the newest token and its drafts."""
        if turn.prefill_tokens:
            return self.request.prompt_ids[self.prefilled_tokens : self.prefilled_tokens + turn.prefill_tokens]
        return (self._last_token, *drafted)

    def completes_prompt(self, turn: Turn) -> bool:
        """Whether the prompt is all in the state after this turn, so that a token can be drawn."""
        return turn.prefill_tokens >= self.prompt_tokens_left

    def look_ahead(self) -> None:
        """Find what may come next, before anything is drawn. Raises SequenceFailed when nothing may."""
        if self._mask is not None:
            self._mask.look()

    def cut_at_forbidden(self, drafted: tuple[int, ...]) -> tuple[int, ...]:
        """Drafts up to the first that may not come."""
        return drafted if self._mask is None or not drafted else drafted[: self._mask.look(drafted)]

    def draw(self, logits: mx.array, drafted: Items[int]) -> Drawn:
        """The tokens after the newest one and after each draft, from the model's logits (1 + drafts, V). Lazy."""
        shaped = self._shape(logits, drafted)
        drawn = self._sampler.draw(shaped if self._mask is None else self._mask.apply(shaped), self.emitted_tokens)
        top = self.request.top_logprobs
        return drawn if top is None else replace(drawn, logprobs=measure_logprobs(logits, drawn.tokens, top))

    def draw_draft(self, logits: mx.array, drafted: Items[mx.array]) -> mx.array:
        """The draft after those of this round, from the head's logits (1, V), by the dice of the token it stands for.

        It is shaped as the model's own choice will be, or it would seldom be the same. What may come after a draft is
        not known before it is read, so only the first is held to what may.
        """
        shaped = self._shape(logits, drafted)
        shaped = shaped if self._mask is None or drafted else self._mask.apply(shaped)
        return self._sampler.draw(shaped, self.emitted_tokens + len(drafted)).tokens

    def _shape(self, logits: mx.array, drafted: Items[int] | Items[mx.array]) -> mx.array:
        return logits if self._shaper is None else self._shaper.shape(logits, drafted)

    def feed_head(self, turn: Turn, streams: mx.array, drawn: Items[int]) -> None:
        """Hand the head what a turn ran and kept: the model's streams (T, N, H), each with the token after it."""
        trail = self.drafter.trail
        if trail is None:
            return
        first = self.prefilled_tokens + 1
        read = self.request.prompt_ids[first : first + turn.prefill_tokens] if turn.prefill_tokens else ()
        followers = (*read, *drawn)
        trail.feed(streams[: len(followers)], followers)
        assert trail.rows == self.state.offset, "the head stands where the model stands"

    def advance_prompt(self, tokens: int, step: int) -> None:
        """A prefill chunk is in the state."""
        self.prefilled_tokens += tokens
        self._computed_tokens += tokens
        self._last_chunk_step = step

    def cut_at_stop(self, drawn: Items[int]) -> Items[int]:
        """Tokens as drawn, up to the first that ends the sequence."""
        for count, token in enumerate(drawn, start=1):
            if token in self.request.stop_ids:
                return drawn[:count]
        return drawn

    def advance_tokens(self, drawn: Items[int]) -> tuple[tuple[int, ...], Outcome | None]:
        """Take tokens as drawn: those up to the one that ends the sequence, and how it does."""
        for count, token in enumerate(drawn, start=1):
            self.emitted_tokens += 1
            self._last_token = token
            self._emitted_ids.append(token)
            if self._shaper is not None:
                self._shaper.note(token)
            if self._mask is not None:
                self._mask.take(token)
            if token in self.request.stop_ids:
                return tuple(drawn[:count]), "stop"
        return tuple(drawn), "length" if self.emitted_tokens >= self.request.max_tokens else None


def check_request(request: EngineRequest, facts: ModelFacts) -> None:
    """Raise SequenceFailed for a request that is unfit for this model.

    The API has refused such requests long before; this is the last door before MLX, where an id past the
    vocabulary would be read outside of the embedding's memory.
    """
    prompt = request.prompt_ids
    if not prompt:
        raise SequenceFailed("The prompt has no tokens.")
    if min(prompt) < 0 or max(prompt) >= facts.vocab_size:
        raise SequenceFailed(f"The prompt holds a token id outside of the model's vocabulary of {facts.vocab_size:,}.")
    if any(not 0 <= token < facts.vocab_size for token, _ in request.sampling.logit_bias):
        raise SequenceFailed(f"logit_bias names a token id outside of the model's vocabulary of {facts.vocab_size:,}.")
    if request.max_tokens < 1:
        raise SequenceFailed(f"max_tokens is {request.max_tokens}; at least 1 is needed.")
    if len(prompt) + request.max_tokens > facts.context_limit_tokens:
        raise SequenceFailed(
            f"{len(prompt):,} prompt tokens and {request.max_tokens:,} new ones do not fit the model's context "
            f"limit of {facts.context_limit_tokens:,} tokens."
        )
