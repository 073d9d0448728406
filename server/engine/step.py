"""The sequences in the engine, and the step that moves them all. Engine thread only.

A fault that belongs to one sequence (its state, its forward, its draw) ends that sequence here and goes no further;
whatever else is raised leaves this module and ends the engine. A fault of the MTP head ends no sequence: that one
decodes plainly from there on.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Items

import mlx.core as mx

from server.engine.accept import accept, count_usable
from server.engine.cost import CostModel, StepLoad
from server.engine.drafter import choose_depths
from server.engine.drafting import LAG_ROWS, DraftJob, propose
from server.engine.forking import share_prompts, take_over
from server.engine.packed import Part, Ran, build_part, run_pass, take_back
from server.engine.request import EngineRequest
from server.engine.resuming import Resumer
from server.engine.sampler import explain_unusable
from server.engine.scheduler import ChunkLimits, Turn, plan_step
from server.engine.sequence import Sequence, check_request
from server.engine.sharing import count_common, hold_back
from server.engine.together import run_together
from server.errors import FormLost, SequenceFailed
from server.events import (
    DraftingChanged,
    EngineEvent,
    Outcome,
    PrefillAdvanced,
    SequenceEnded,
    StepCost,
    StepDone,
    TokenLogprob,
    TokensEmitted,
)
from server.models.cache import ServedModel
from server.policy import EnginePolicy

log = logging.getLogger(__name__)


class StepRunner:
    """Holds the sequences in order of arrival and runs one step after another."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._facts = model.facts
        self._sequences: dict[str, Sequence] = {}
        self._resumer = Resumer(model)
        self._costs = CostModel()
        self._steps = 0
        self._decode_steps: Counter[int] = Counter()
        """Steps by the number of sequences that decoded in them."""
        self._longest_chunk_tokens = 0

    @property
    def idle(self) -> bool:
        """True when there is no sequence to move."""
        return not self._sequences

    @property
    def cost(self) -> StepCost:
        """What steps have told of their cost."""
        return self._costs.cost

    def find_budget(self, policy: EnginePolicy) -> int:
        """Bytes that MLX may hold in all; 0 when the policy or the machine sets no limit."""
        return self._facts.plan_memory(policy.memory_budget_gib).budget_bytes

    def add(self, request: EngineRequest) -> tuple[EngineEvent, ...]:
        """Take a request in; no work is done yet. One that does not fit the model ends at once."""
        try:
            check_request(request, self._facts)
            sequence = Sequence(request, self._facts.vocab_size, self._steps)
            waiting = (each for each in self._sequences.values() if each.prompt_tokens_left)
            sequence.common_tokens = {
                each.request.id: count_common(request.prompt_ids, each.request.prompt_ids) for each in waiting
            }
            self._sequences[request.id] = sequence
        except Exception as error:
            return (SequenceEnded(request.id, "failed", time.monotonic(), _explain(request.id, error)),)
        return ()

    def cancel(self, request_id: str) -> tuple[EngineEvent, ...]:
        """Drop one sequence; nothing happens when it is not here (any more). Who waits for its prompt goes on."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return ()
        handed_on = take_over(sequence, self._sequences.values()) if sequence.prompt_tokens_left else []
        return (*handed_on, self._end(request_id, "cancelled"))

    def cancel_all(self) -> tuple[EngineEvent, ...]:
        """Drop every sequence."""
        return tuple(self._end(request_id, "cancelled") for request_id in tuple(self._sequences))

    def follow(self, policy: EnginePolicy) -> tuple[EngineEvent, ...]:
        """Between steps: let a policy that has changed take effect on what is kept; what came of it."""
        return tuple(self._resumer.advance(self._sequences.values(), policy))

    def close(self, timeout_s: float) -> None:
        """Nothing will be asked for any more; waits at most so long for what is being written to disk."""
        self._resumer.close(timeout_s)

    def run_step(self, policy: EnginePolicy) -> tuple[EngineEvent, ...]:
        """Run one planned step to its end; what it did, `StepDone` first."""
        events: list[EngineEvent] = self._resumer.advance(self._sequences.values(), policy)
        began_s = time.monotonic()
        self._steps += 1
        turns = [turn for turn in self._plan(policy, events) if self._open(turn, policy, events)]
        jobs = self._build_jobs(turns)
        waiting_rows = sum(job.trail.waiting_rows for job in jobs.values())
        drafts = self._draft(jobs)
        built = (self._build_part(turn, drafts.get(turn.request_id, ()), events) for turn in turns)
        parts = [part for part in built if part is not None]
        load = _measure(parts, jobs.values(), waiting_rows)
        rans = run_together(parts, lambda some: run_pass(self._model, some), take_back)
        seconds = time.monotonic() - began_s
        for part, ran in zip(parts, rans, strict=True):
            events.extend(self._settle_alone(part, ran, seconds))
        events.extend(self._tell_drafting(parts))
        events.extend(self._begin_states(parts))
        now_s = time.monotonic()
        if parts:
            self._costs.observe(load, now_s - began_s)
        self._decode_steps[load.sequences] += 1
        emitted = [len(event.token_ids) for event in events if isinstance(event, TokensEmitted)]
        counts = load.prefill_tokens, sum(emitted), len(parts), len(emitted), load.context_tokens
        done = StepDone(now_s, now_s - began_s, *counts)
        return (done, *events)

    def _plan(self, policy: EnginePolicy, events: list[EngineEvent]) -> tuple[Turn, ...]:
        sequences = [each for each in self._sequences.values() if not each.is_new]
        for each in sequences:
            each.follow(policy.mtp)
        shares, forked = share_prompts(sequences)
        events.extend(forked)
        decoding = [(each.drafter, each.need) for each in sequences if not each.prompt_tokens_left]
        choose_depths(decoding, policy.mtp, self._costs.cost, self._decode_steps[len(decoding)])
        limits = ChunkLimits(
            policy.prefill_chunk_tokens, self._longest_chunk_tokens, policy.decode_stall_ms / 1000, self._costs.cost
        )
        return plan_step(hold_back([each.need for each in sequences], shares), limits, self._steps)

    def _open(self, turn: Turn, policy: EnginePolicy, events: list[EngineEvent]) -> bool:
        """Make sure that a sequence has its state, and knows what it may draw; False when that fails, which ends it."""
        sequence = self._sequences[turn.request_id]
        try:
            sequence.open(self._model, policy.mtp)
            if sequence.completes_prompt(turn):
                sequence.look_ahead()
        except Exception as error:
            events.append(self._fail(turn.request_id, error))
            return False
        return True

    def _build_jobs(self, turns: Iterable[Turn]) -> dict[str, DraftJob]:
        """Who needs the head in this step: whoever drafts, and whoever would keep too many rows waiting."""
        jobs: dict[str, DraftJob] = {}
        for turn in turns:
            trail = self._sequences[turn.request_id].drafter.trail
            if trail is not None and (turn.draft_tokens or trail.waiting_rows >= LAG_ROWS):
                draw = self._sequences[turn.request_id].draw_draft
                jobs[turn.request_id] = DraftJob(trail, turn.draft_tokens, draw, trail.state.checkpoint())
        return jobs

    def _draft(self, jobs: dict[str, DraftJob]) -> dict[str, tuple[int, ...]]:
        """Drafts by request id. A head that fails on a sequence is done with it."""
        head = self._model.mtp
        if head is None or not jobs:
            return {}
        results = run_together(tuple(jobs.values()), lambda some: propose(head, some), _take_drafts_back)
        drafts: dict[str, tuple[int, ...]] = {}
        for request_id, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                log.error("drafting for sequence %s failed", request_id, exc_info=result)
                self._sequences[request_id].drafter.end(f"the draft head failed: {describe_fault(result)}")
            else:
                drafts[request_id] = result
        return drafts

    def _build_part(self, turn: Turn, proposed: tuple[int, ...], events: list[EngineEvent]) -> Part | None:
        """A turn's part in the pass; None when its drafts cannot be looked at, which ends it."""
        try:
            return build_part(self._sequences[turn.request_id], turn, proposed)
        except Exception as error:
            events.append(self._fail(turn.request_id, error))
            return None

    def _settle_alone(self, part: Part, ran: Ran | Exception, seconds: float) -> list[EngineEvent]:
        """Settle a part; a state that cannot be cut back ends its sequence and no other."""
        try:
            return self._settle(part, ran, seconds)
        except Exception as error:
            return [self._fail(part.turn.request_id, error)]

    def _settle(self, part: Part, ran: Ran | Exception, seconds: float) -> list[EngineEvent]:
        """Accept what a part drew, cut its state back to that, and hand it out."""
        sequence, request_id = part.sequence, part.turn.request_id
        if isinstance(ran, Exception):
            return [self._fail(request_id, ran)]
        usable = count_usable(ran.peaks)
        if ran.drawn and not usable:
            return [self._end(request_id, "failed", explain_unusable(ran.peaks[0]))]
        drawn = sequence.cut_at_stop(ran.drawn[: min(accept(part.drafted, ran.drawn) + 1, usable)])
        if part.drafted and len(drawn) <= len(part.drafted):
            sequence.state.rollback(part.before, len(drawn))
        if ran.streams is not None:
            sequence.feed_head(part.turn, ran.streams, drawn)
        events: list[EngineEvent] = []
        if part.turn.prefill_tokens:
            events.append(self._record_chunk(sequence, part.turn.prefill_tokens, seconds))
        else:
            sequence.drafter.learn(part.proposed_tokens, len(drawn) - 1)
        return [*events, *self._emit(sequence, part.proposed_tokens, drawn, ran.logprobs)] if drawn else events

    def _emit(
        self, sequence: Sequence, drafted_tokens: int, drawn: Items[int], logprobs: Items[TokenLogprob]
    ) -> list[EngineEvent]:
        token_ids, outcome = sequence.advance_tokens(drawn)
        told = tuple(logprobs[: len(token_ids)])
        emitted = TokensEmitted(sequence.request.id, token_ids, time.monotonic(), drafted_tokens, len(drawn) - 1, told)
        return [emitted] if outcome is None else [emitted, self._end(sequence.request.id, outcome)]

    def _begin_states(self, parts: Items[Part]) -> list[EngineEvent]:
        """Let MLX work on the states of those that go on, without waiting; one that it cannot compute ends alone."""
        going_on = tuple(part for part in parts if part.turn.request_id in self._sequences)
        results = run_together(going_on, _begin, lambda part: None)
        faults = ((part.turn.request_id, each) for part, each in zip(going_on, results, strict=True))
        return [self._fail(name, each) for name, each in faults if each is not None]

    def _tell_drafting(self, parts: Items[Part]) -> list[EngineEvent]:
        """What has changed of drafting, of the sequences that go on."""
        going_on = (part.sequence for part in parts if part.turn.request_id in self._sequences)
        news = ((sequence.request.id, sequence.drafter.take_news()) for sequence in going_on)
        return [DraftingChanged(request_id, state) for request_id, state in news if state is not None]

    def _record_chunk(self, sequence: Sequence, tokens: int, seconds: float) -> PrefillAdvanced:
        sequence.advance_prompt(tokens, self._steps)
        self._longest_chunk_tokens = max(self._longest_chunk_tokens, tokens)
        return PrefillAdvanced(sequence.request.id, sequence.prefilled_tokens, tokens, seconds, sequence.cached_tokens)

    def _fail(self, request_id: str, error: Exception) -> SequenceEnded:
        self._resumer.leave(self._sequences.pop(request_id), "failed")
        told, has_lost_form = _explain(request_id, error), isinstance(error, FormLost)
        return SequenceEnded(request_id, "failed", time.monotonic(), told, has_lost_form)

    def _end(self, request_id: str, outcome: Outcome, error: str | None = None) -> SequenceEnded:
        self._resumer.leave(self._sequences.pop(request_id), outcome)
        return SequenceEnded(request_id, outcome, time.monotonic(), error)


def _measure(parts: Items[Part], jobs: Iterable[DraftJob], waiting_rows: int) -> StepLoad:
    """What a step has to do, before it runs."""
    chunk = next((part for part in parts if part.turn.prefill_tokens), None)
    decoding = [part for part in parts if not part.turn.prefill_tokens]
    depths = [job.depth for job in jobs]
    return StepLoad(
        sequences=len(decoding),
        rows=sum(len(part.segment.token_ids) for part in decoding),
        wide_sequences=sum(1 for part in decoding if part.drafted),
        context_tokens=sum(part.segment.state.offset for part in decoding),
        prefill_tokens=chunk.turn.prefill_tokens if chunk else 0,
        prefill_context_tokens=chunk.segment.state.offset if chunk else 0,
        draft_calls=max((max(1, depth) for depth in depths), default=0),
        draft_rows=waiting_rows + sum(max(0, depth - 1) for depth in depths),
    )


def _begin(parts: Items[Part]) -> list[None]:
    mx.async_eval([part.segment.state.arrays() for part in parts])
    return [None] * len(parts)


def _take_drafts_back(job: DraftJob) -> None:
    job.trail.state.rollback(job.before)


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
