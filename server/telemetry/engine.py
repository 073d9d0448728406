"""The engine as a whole, folded from its events: steps, memory, and what it holds."""

from __future__ import annotations

from collections import deque

from server.events import EngineDied, EngineEvent, MemorySampled, PrefixCacheSampled, SequenceEnded, StepCost, StepDone
from server.rates import RATE_ROUNDS, RecentSteps, SecondCounts
from server.snapshot import EngineView, MemoryView, RatesView
from server.telemetry.facts import ServerFacts

TOTAL_HISTORY_S = 300


class EngineFold:
    """The engine as a whole: its steps, its memory, and what it holds."""

    def __init__(self, started_s: float) -> None:
        self._held: set[str] = set()
        """Sequences that the engine has and has not reported as ended, whatever their clients did since."""
        self._work_since_s = started_s
        self._died = False
        self._last: StepDone | None = None
        self._steps_total = 0
        self._decode_total = 0
        self._prefill_total = 0
        self._decode, self._prefill = RecentSteps(), RecentSteps()
        self._decode_history = SecondCounts(started_s, TOTAL_HISTORY_S)
        self._prefill_history = SecondCounts(started_s, TOTAL_HISTORY_S)
        self._emissions: deque[tuple[int, int]] = deque(maxlen=RATE_ROUNDS)
        self._cost = StepCost()
        self._memory = MemorySampled(active_bytes=0, cache_bytes=0, peak_bytes=0)
        self._prefixes = PrefixCacheSampled(memory_bytes=0, budget_bytes=0, disk_bytes=0)

    def took(self, request_id: str, now: float) -> None:
        """It was handed a sequence just now."""
        if self._died:
            return
        if not self._held:
            self._work_since_s = now
        self._held.add(request_id)

    def fold(self, event: EngineEvent) -> None:
        """Take in one of its events."""
        match event:
            case StepDone():
                self._fold_step(event)
            case SequenceEnded():
                self._held.discard(event.request_id)
            case MemorySampled():
                self._memory = event
            case PrefixCacheSampled():
                self._prefixes = event
            case StepCost():
                self._cost = event
            case EngineDied():
                self._died = True
                self._held.clear()
            case _:
                pass

    def _fold_step(self, step: StepDone) -> None:
        self._last = step
        self._steps_total += 1
        self._decode_total += step.decode_tokens
        self._prefill_total += step.prefill_tokens
        if step.decoding:
            self._emissions.append((step.decode_tokens, step.decoding))
        began = step.at_s - step.seconds
        self._decode.add(step.at_s, step.seconds, step.decode_tokens)
        self._prefill.add(step.at_s, step.seconds, step.prefill_tokens)
        self._decode_history.add(began, step.at_s, step.decode_tokens)
        self._prefill_history.add(began, step.at_s, step.prefill_tokens)

    def step_age_s(self, now: float) -> float | None:
        """Since its last step ended, or its work began; None while it holds none."""
        if not self._held:
            return None
        last_s = self._last.at_s if self._last else self._work_since_s
        return max(0.0, now - max(last_s, self._work_since_s))

    def memory(self, facts: ServerFacts) -> MemoryView:
        """Its memory beside the process's and the machine's."""
        return MemoryView(
            active_bytes=self._memory.active_bytes,
            cache_bytes=self._memory.cache_bytes,
            peak_bytes=self._memory.peak_bytes,
            resident_bytes=facts.resident_bytes,
            machine_bytes=facts.machine_bytes,
            budget_bytes=facts.memory_budget_bytes,
            promised_bytes=facts.promised_bytes,
            is_full=facts.memory_is_full,
            prefix_cache_bytes=self._prefixes.memory_bytes,
            prefix_cache_budget_bytes=self._prefixes.budget_bytes,
            prefix_cache_disk_bytes=self._prefixes.disk_bytes,
        )

    def rates(self, now: float) -> RatesView:
        """Over all streams."""
        busy = bool(self._held)
        return RatesView(
            decode_tps=self._decode.rate(now, busy),
            prefill_tps=self._prefill.rate(now, busy),
            decode_history_tps=self._decode_history.history(now),
            prefill_history_tps=self._prefill_history.history(now),
            decode_tokens_total=self._decode_total,
            prefill_tokens_total=self._prefill_total,
        )

    def view(self, facts: ServerFacts, now: float) -> EngineView:
        """The engine thread."""
        return EngineView(
            alive=facts.engine_alive,
            busy=bool(self._held),
            steps_total=self._steps_total,
            step_s=self._last.seconds if self._last else None,
            step_age_s=self.step_age_s(now),
            error=facts.engine_error,
            tokens_per_step=self._tokens_per_step(),
            cost=self._cost,
            forecast=facts.forecast,
        )

    def _tokens_per_step(self) -> float | None:
        decoding = sum(decoding for _, decoding in self._emissions)
        return sum(tokens for tokens, _ in self._emissions) / decoding if decoding else None
