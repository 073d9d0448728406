"""One sequence in the engine: its request, its model state, and how far it has come. Engine thread only."""

from __future__ import annotations

from collections.abc import Callable

from server.engine.request import EngineRequest
from server.engine.sampler import TokenSampler
from server.engine.scheduler import Need, Turn
from server.errors import SequenceFailed
from server.events import Outcome
from server.models.cache import ModelFacts, SequenceState


class Sequence:
    """A request being generated. Dropping it drops everything that the model remembers of it."""

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        self.request = request
        self.sampler = TokenSampler(request.sampling, vocab_size)
        self.prefilled_tokens = 0
        """Prompt tokens in the state."""
        self.emitted_tokens = 0
        self._state: SequenceState | None = None
        self._last_token = -1
        self._last_chunk_step = -1

    @property
    def need(self) -> Need:
        """What the scheduler has to know."""
        left = len(self.request.prompt_ids) - self.prefilled_tokens
        return Need(self.request.id, left, self._last_chunk_step)

    def open_state(self, build_state: Callable[[], SequenceState]) -> SequenceState:
        """The model state; built at the first call."""
        if self._state is None:
            self._state = build_state()
        return self._state

    def inputs(self, turn: Turn) -> tuple[int, ...]:
        """The tokens that the model reads in a turn: the next prompt tokens, or the newest token."""
        if turn.prefill_tokens:
            return self.request.prompt_ids[self.prefilled_tokens : self.prefilled_tokens + turn.prefill_tokens]
        return (self._last_token,)

    def completes_prompt(self, turn: Turn) -> bool:
        """Whether the prompt is all in the state after this turn, so that a token can be drawn."""
        return self.prefilled_tokens + turn.prefill_tokens >= len(self.request.prompt_ids)

    def advance_prompt(self, tokens: int, step: int) -> None:
        """A prefill chunk is in the state."""
        self.prefilled_tokens += tokens
        self._last_chunk_step = step

    def advance_token(self, token: int) -> Outcome | None:
        """A token has been drawn; how that ends the sequence, if it does."""
        self.emitted_tokens += 1
        self._last_token = token
        if token in self.request.stop_ids:
            return "stop"
        return "length" if self.emitted_tokens >= self.request.max_tokens else None


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
    if request.max_tokens < 1:
        raise SequenceFailed(f"max_tokens is {request.max_tokens}; at least 1 is needed.")
    if len(prompt) + request.max_tokens > facts.context_limit_tokens:
        raise SequenceFailed(
            f"{len(prompt):,} prompt tokens and {request.max_tokens:,} new ones do not fit the model's context "
            f"limit of {facts.context_limit_tokens:,} tokens."
        )
