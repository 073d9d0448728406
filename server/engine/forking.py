"""Lets a sequence go on from the state of another one that has read the same tokens. Engine thread only."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from server.engine.sequence import Sequence
from server.engine.sharing import Share, explain_shared, explain_waiting, find_parting, find_share
from server.events import EngineEvent, PrefillAdvanced, PromptShared

log = logging.getLogger(__name__)


def share_prompts(sequences: Iterable[Sequence]) -> tuple[dict[str, Share], list[EngineEvent]]:
    """Fork every state that has come to where a later prompt parts from it; then, who waits for whom by request id.

    Takes the sequences in order of arrival. A state that cannot be forked is no longer waited for.
    """
    shares: dict[str, Share] = {}
    events: list[EngineEvent] = []
    earlier: dict[str, Sequence] = {}
    for sequence in sequences:
        if not sequence.prompt_tokens_left:
            continue
        while share := find_share(sequence.prompt, (each.prompt for each in earlier.values())):
            leader = earlier[share.leader_id]
            if leader.prefilled_tokens < share.tokens:
                shares[sequence.request.id] = share
                break
            events += _fork(leader, sequence, share)
        events += _tell_waiting(sequence, share)
        earlier[sequence.request.id] = sequence
    return shares, events


def take_over(leader: Sequence, sequences: Iterable[Sequence]) -> list[EngineEvent]:
    """Let the first of those that wait for one go on from where that one is now, for it is about to be dropped.

    The others then wait for the first.
    """
    sequences = tuple(sequences)
    shares, events = share_prompts(sequences)
    for sequence in sequences:
        share = shares.get(sequence.request.id)
        saves = leader.prefilled_tokens > sequence.prefilled_tokens
        if saves and share is not None and share.leader_id == leader.request.id:
            return [*events, *_fork(leader, sequence, share)]
    return events


def _fork(leader: Sequence, sequence: Sequence, share: Share) -> list[EngineEvent]:
    try:
        sequence.go_on_from(leader)
    except Exception:
        log.exception("the state of sequence %s could not be forked", leader.request.id)
        sequence.common_tokens.pop(leader.request.id)
        return []
    sequence.share = None
    done, cached, prompt = sequence.prefilled_tokens, sequence.cached_tokens, sequence.prompt
    detail = explain_shared(prompt, cached, share)
    return [
        PromptShared(sequence.request.id, find_parting(prompt, share), detail),
        PrefillAdvanced(sequence.request.id, done, 0, 0.0, cached_tokens=cached),
    ]


def _tell_waiting(sequence: Sequence, share: Share | None) -> list[EngineEvent]:
    """What is new of a wait: that it began, or that it is over and nothing came of it."""
    before, sequence.share = sequence.share, share
    if share == before:
        return []
    if share is not None:
        detail = explain_waiting(sequence.prompt, sequence.cached_tokens, share)
        return [PromptShared(sequence.request.id, find_parting(sequence.prompt, share), detail)]
    found = sequence.looked_up
    if found is None:
        return [PromptShared(sequence.request.id, None, "")]
    return [PromptShared(sequence.request.id, found.diverged_at, found.detail)]
