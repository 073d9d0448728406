"""The sequences in the engine, and the step that moves them all. Engine thread only.

A fault that belongs to one sequence (its state, its forward, its draw) ends that sequence here and goes no further;
whatever else is raised leaves this module and ends the engine.

Each turn is evaluated before the next is built, which tells faults and seconds apart. Launching all turns of a step
with `mx.async_eval` and reading them afterwards gained 2-4 % for two streams (nano, MLX 0.32.4, two busy Linux
cores, 2026-11-30, 400 paired steps): on the CPU that call returns only when nearly all work is done. Launching a
sequence's next step before its token is read is no choice either: a model may need the token's number to look up
its n-grams.
"""

from __future__ import annotations

import logging
import time

import mlx.core as mx

from server.engine.request import EngineRequest
from server.engine.scheduler import FIRST_CHUNK_TOKENS, Turn, pace_chunk, plan_step
from server.engine.sequence import Sequence, check_request
from server.errors import SequenceFailed
from server.events import EngineEvent, Outcome, PrefillAdvanced, SequenceEnded, StepDone, TokensEmitted
from server.models.cache import Segment, ServedModel

log = logging.getLogger(__name__)


class StepRunner:
    """Holds the sequences in order of arrival and runs one step after another."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._facts = model.facts
        self._sequences: dict[str, Sequence] = {}
        self._steps = 0
        self._longest_chunk_tokens = FIRST_CHUNK_TOKENS

    @property
    def idle(self) -> bool:
        """True when there is no sequence to move."""
        return not self._sequences

    def add(self, request: EngineRequest) -> tuple[EngineEvent, ...]:
        """Take a request in; no work is done yet. One that does not fit the model ends at once."""
        try:
            check_request(request, self._facts)
            self._sequences[request.id] = Sequence(request, self._facts.vocab_size)
        except Exception as error:
            return (SequenceEnded(request.id, "failed", time.monotonic(), _explain(request.id, error)),)
        return ()

    def cancel(self, request_id: str) -> tuple[EngineEvent, ...]:
        """Drop one sequence; nothing happens when it is not here (any more)."""
        return (self._end(request_id, "cancelled"),) if request_id in self._sequences else ()

    def cancel_all(self) -> tuple[EngineEvent, ...]:
        """Drop every sequence."""
        return tuple(self._end(request_id, "cancelled") for request_id in tuple(self._sequences))

    def run_step(self, prefill_chunk_tokens: int) -> tuple[EngineEvent, ...]:
        """Run one planned step to its end; what it did, `StepDone` first."""
        began_s = time.monotonic()
        self._steps += 1
        chunk_tokens = min(prefill_chunk_tokens, self._longest_chunk_tokens)
        turns = plan_step((sequence.need for sequence in self._sequences.values()), chunk_tokens)
        events: list[EngineEvent] = []
        for turn in turns:
            events.extend(self._run_turn(turn))
        prefill_tokens = sum(event.chunk_tokens for event in events if isinstance(event, PrefillAdvanced))
        decode_tokens = sum(len(event.token_ids) for event in events if isinstance(event, TokensEmitted))
        now_s = time.monotonic()
        return (StepDone(now_s, now_s - began_s, prefill_tokens, decode_tokens, len(turns)), *events)

    def _run_turn(self, turn: Turn) -> list[EngineEvent]:
        sequence = self._sequences[turn.request_id]
        began_s = time.monotonic()
        try:
            token = self._advance(sequence, turn)
        except Exception as error:
            return [self._end(turn.request_id, "failed", _explain(turn.request_id, error))]
        now_s = time.monotonic()
        events: list[EngineEvent] = []
        if turn.prefill_tokens:
            events.append(self._record_chunk(sequence, turn.prefill_tokens, now_s - began_s))
        if token is not None:
            events.append(TokensEmitted(turn.request_id, (token,), now_s))
            outcome = sequence.advance_token(token)
            if outcome is not None:
                events.append(self._end(turn.request_id, outcome))
        return events

    def _advance(self, sequence: Sequence, turn: Turn) -> int | None:
        """Run one turn on the model; the token drawn, None while the prompt is not complete."""
        state = sequence.open_state(self._model.build_state)
        logits = self._model.forward((Segment(state, sequence.inputs(turn)),))  # (1, V)
        if not sequence.completes_prompt(turn):
            mx.eval(state.arrays())  # the logits of a half-read prompt are never computed
            return None
        drawn = sequence.sampler.draw(logits, sequence.emitted_tokens)
        mx.eval(drawn.token, drawn.peak, state.arrays())
        return drawn.read()

    def _record_chunk(self, sequence: Sequence, tokens: int, seconds: float) -> PrefillAdvanced:
        sequence.advance_prompt(tokens, self._steps)
        self._longest_chunk_tokens = pace_chunk(self._longest_chunk_tokens, tokens, seconds)
        return PrefillAdvanced(sequence.request.id, sequence.prefilled_tokens, tokens, seconds)

    def _end(self, request_id: str, outcome: Outcome, error: str | None = None) -> SequenceEnded:
        del self._sequences[request_id]
        return SequenceEnded(request_id, outcome, time.monotonic(), error)


def _explain(request_id: str, error: Exception) -> str:
    """What its client is told of a fault; one that nobody foresaw is logged in full too."""
    if isinstance(error, SequenceFailed):
        return error.message
    log.error("sequence %s failed", request_id, exc_info=error)
    return f"The model failed on this sequence: {describe_fault(error)}."


def describe_fault(error: BaseException) -> str:
    """An exception in one short line: its type and the first line of what it says."""
    first = str(error).strip().partition("\n")[0].rstrip(".")[:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
