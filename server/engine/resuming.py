"""Lets sequences begin with what the prefix cache has of their prompts, and leaves theirs in it. Engine thread only."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from server.engine.prefix.cache import PrefixCache
from server.engine.sequence import Sequence
from server.events import EngineEvent, Outcome, PrefillAdvanced, PrefixCacheSampled, PromptLookedUp
from server.models.cache import ServedModel
from server.policy import EnginePolicy

MEMORY_SHARE = 0.25
"""Of the memory that the model leaves of the budget: what the prefix cache may take by default. The rest is for the
contexts of running streams, which are up to 7.5 GiB each with the real model's sizes."""

log = logging.getLogger(__name__)


class Resumer:
    """Stands between the sequences and the prefix cache."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._cache = PrefixCache(model)
        self._policy = EnginePolicy()
        self._told = PrefixCacheSampled(0, 0, 0)
        self._changes = (-1, 0)

    def advance(self, sequences: Iterable[Sequence], policy: EnginePolicy) -> list[EngineEvent]:
        """Before a step: look up the prompts that have just come, and take in what stands at a point."""
        sequences = tuple(sequences)
        self._policy = policy
        self._cache.follow(policy, *self._find_room(sequences, policy))
        events: list[EngineEvent] = []
        for sequence in sequences:
            if sequence.is_new:
                events += self._begin(sequence)
            elif sequence.prefilled_tokens in sequence.points and sequence.prompt_tokens_left:
                self._take(sequence)
                sequence.points = tuple(p for p in sequence.points if p > sequence.prefilled_tokens)
        return [*events, *self._sample()]

    def leave(self, sequence: Sequence, outcome: Outcome) -> None:
        """A sequence is over: what it has computed is kept, unless it broke."""
        if outcome != "failed" and not sequence.is_new:
            self._take(sequence)
        self._cache.finish(sequence.request.id)

    def close(self, timeout_s: float) -> None:
        """Wait at most so long for what is being written to disk."""
        self._cache.close(timeout_s)

    def _find_room(self, sequences: Iterable[Sequence], policy: EnginePolicy) -> tuple[int, int | None]:
        """What the cache takes when the policy leaves it open, and what running sequences leave it at most.

        They have all of their prompts and what they have said so far. What they are promised beyond that is the
        cache's until they come to need it.
        """
        plan = self._model.facts.plan_memory(policy.memory_budget_gib)
        if not plan.budget_bytes:
            return int(MEMORY_SHARE * self._model.facts.device_bytes), None
        tokens = [len(sequence.request.prompt_ids) + sequence.emitted_tokens for sequence in sequences]
        left = plan.room_bytes - sum(plan.stream.at(count) for count in tokens)
        return int(MEMORY_SHARE * plan.room_bytes), max(0, left)

    def _begin(self, sequence: Sequence) -> list[EngineEvent]:
        request, setting = sequence.request, self._policy.mtp
        drafts = self._model.mtp is not None and setting != "off"
        found = self._cache.begin(request.id, request.prompt_ids, request.boundaries, drafts)
        if found is None:
            return []
        sequence.is_new, sequence.points = False, found.points
        if found.state is not None:
            sequence.resume(found.state, found.trail, self._model, setting)
        if not found.why:
            return []
        log.debug("reused %s", found.why, extra={"request_id": request.id})
        told = sequence.looked_up = PromptLookedUp(request.id, found.tokens, found.diverged_at, found.why)
        if not found.tokens:
            return [told]
        return [told, PrefillAdvanced(request.id, found.tokens, 0, 0.0, cached_tokens=found.tokens)]

    def _take(self, sequence: Sequence) -> None:
        token_ids = sequence.token_ids
        if token_ids:
            self._cache.take(sequence.request.id, token_ids, sequence.state, sequence.drafter.trail)

    def _sample(self) -> list[EngineEvent]:
        """What the cache holds, when that has changed."""
        changes = self._cache.changes
        if changes == self._changes:
            return []
        self._changes, before = changes, self._told
        self._told = PrefixCacheSampled(self._cache.nbytes, self._cache.budget_bytes, self._cache.disk_bytes)
        return [] if self._told == before else [self._told]
