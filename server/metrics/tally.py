"""Counts what streams and engine steps did since the server began.

Lives on the server loop, beside telemetry, which forgets: a stream that has left the snapshot stays counted here.
Holds a record of each stream only until its end has been told by both sides, the API and the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from server.events import (
    EngineDied,
    EngineEvent,
    Outcome,
    PrefillAdvanced,
    PromptLookedUp,
    Refused,
    SequenceEnded,
    StepDone,
    TokensEmitted,
)
from server.metrics import families
from server.metrics.series import Series
from server.rates import RecentRounds

FINISHED_REASONS: dict[Outcome, str] = {"stop": "stop", "length": "length", "cancelled": "abort", "failed": "error"}
"""vLLM's words for how a stream ended."""


@dataclass(slots=True)
class _Record:
    """One stream, from its admission until nobody has anything to say of it."""

    model: str
    prompt_tokens: int
    opened_s: float
    phase: Literal["waiting", "prefill", "decode"] = "waiting"
    began_s: float = 0.0
    """When the first step with it began."""
    done_tokens: int = 0
    cached_tokens: int = 0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    emitted_tokens: int = 0
    failure: str = "other"
    is_over: bool = False
    """The API has told its end."""
    has_left: bool = False
    """The engine has."""


class Tally:
    """Folds the same events as telemetry into counters and histograms."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.series = Series()
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._rounds = RecentRounds()

    @property
    def acceptance_ratio(self) -> float | None:
        """Accepted over drafted, of the last decode steps of all streams; None while nothing decodes."""
        decoding = any(record.phase == "decode" and not record.is_over for record in self._records.values())
        return self._rounds.acceptance() if decoding else None

    @property
    def followed(self) -> int:
        """Streams that are not over for both sides."""
        return len(self._records)

    def stream_opened(self, request_id: str, model: str, prompt_tokens: int) -> None:
        """A stream was admitted just now."""
        self._records[request_id] = _Record(model, prompt_tokens, self._clock())

    def stream_ended(self, request_id: str, outcome: Outcome) -> None:
        """How a stream ended, in the API's word; the first word counts."""
        record = self._records.get(request_id)
        if record is None or record.is_over:
            return
        record.is_over = True
        self._count_end(record, outcome)
        self._forget(request_id)

    def refused(self, refused: Refused) -> None:
        """A request was not admitted."""
        self.series.add(families.REFUSED, 1, refused.code)

    def fold(self, events: tuple[EngineEvent, ...]) -> None:
        """Take in what one engine step did, its `StepDone` first."""
        began_s = self._clock()
        for event in events:
            match event:
                case StepDone():
                    began_s = event.at_s - event.seconds
                    self._count_step(event)
                case EngineDied():
                    self._end_all()
                case PrefillAdvanced(request_id=request_id) if record := self._records.get(request_id):
                    self._count_prefill(record, event, began_s)
                case PromptLookedUp(request_id=request_id) if record := self._records.get(request_id):
                    self.series.add(families.PREFIX_CACHE_QUERIES, record.prompt_tokens, record.model)
                    self.series.add(families.PREFIX_CACHE_HITS, event.cached_tokens, record.model)
                case TokensEmitted(request_id=request_id) if record := self._records.get(request_id):
                    self._count_tokens(record, event)
                case SequenceEnded(request_id=request_id) if record := self._records.get(request_id):
                    record.has_left = True
                    record.failure = "sequence_failed" if event.outcome == "failed" else record.failure
                    self._forget(request_id)
                case _:
                    pass

    def _count_step(self, step: StepDone) -> None:
        if not step.sequences:
            return
        # A step has one chunk of a prompt at most; who else is in it decodes.
        alone = step.sequences == 1
        work = "decode" if not step.prefill_tokens else "prefill" if alone else "mixed"
        self.series.observe(families.STEP, step.seconds, work)

    def _count_prefill(self, record: _Record, event: PrefillAdvanced, began_s: float) -> None:
        if record.phase == "waiting":
            record.phase, record.began_s = "prefill", max(record.opened_s, began_s)
            self.series.observe(families.QUEUE_TIME, record.began_s - record.opened_s, record.model)
        done = max(record.done_tokens, event.done_tokens)
        cached = max(record.cached_tokens, event.cached_tokens)
        self.series.add(families.PROMPT_TOKENS, done - record.done_tokens, record.model)
        self.series.add(families.CACHED_PROMPT_TOKENS, cached - record.cached_tokens, record.model)
        record.done_tokens, record.cached_tokens = done, cached

    def _count_tokens(self, record: _Record, event: TokensEmitted) -> None:
        if not event.token_ids:
            return
        if not record.emitted_tokens:
            self._count_first_token(record, event.at_s)
        else:
            self.series.observe(families.INTER_TOKEN_LATENCY, event.at_s - record.last_token_s, record.model)
            self._count_drafts(record.model, event)
        record.phase, record.last_token_s = "decode", event.at_s
        record.emitted_tokens += len(event.token_ids)
        self.series.add(families.GENERATION_TOKENS, len(event.token_ids), record.model)

    def _count_first_token(self, record: _Record, at_s: float) -> None:
        record.first_token_s = at_s
        self.series.observe(families.TIME_TO_FIRST_TOKEN, at_s - record.opened_s, record.model)
        if record.phase == "prefill":
            self.series.observe(families.PREFILL_TIME, at_s - record.began_s, record.model)

    def _count_drafts(self, model: str, event: TokensEmitted) -> None:
        self._rounds.add(event.drafted_tokens, event.accepted_tokens, len(event.token_ids))
        if not event.drafted_tokens:
            return
        self.series.add(families.DRAFTS, 1, model)
        self.series.add(families.DRAFT_TOKENS, event.drafted_tokens, model)
        self.series.add(families.ACCEPTED_TOKENS, event.accepted_tokens, model)
        for position in range(event.drafted_tokens):
            kept = position < event.accepted_tokens
            self.series.add(families.ACCEPTED_TOKENS_PER_POS, kept, model, str(position))

    def _count_end(self, record: _Record, outcome: Outcome) -> None:
        self.series.add(families.REQUEST_SUCCESS, 1, record.model, FINISHED_REASONS[outcome])
        match outcome:
            case "cancelled":
                self.series.add(families.CANCELLED, 1, record.phase)
            case "failed":
                self.series.add(families.FAILED, 1, record.failure)
            case _:
                self._count_answer(record)

    def _count_answer(self, record: _Record) -> None:
        """What only whole answers tell: cut ones would make every one of these look short."""
        decode_s, tokens = record.last_token_s - record.first_token_s, record.emitted_tokens
        self.series.observe(families.REQUEST_LATENCY, self._clock() - record.opened_s, record.model)
        self.series.observe(families.DECODE_TIME, decode_s, record.model)
        self.series.observe(families.REQUEST_PROMPT_TOKENS, record.prompt_tokens, record.model)
        self.series.observe(families.REQUEST_GENERATION_TOKENS, tokens, record.model)
        if tokens > 1:
            self.series.observe(families.TIME_PER_OUTPUT_TOKEN, decode_s / (tokens - 1), record.model)

    def _end_all(self) -> None:
        """The engine holds nothing any more."""
        for request_id, record in tuple(self._records.items()):
            if not record.has_left:
                record.has_left, record.failure = True, "engine_dead"
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        record = self._records[request_id]
        if record.is_over and record.has_left:
            del self._records[request_id]
