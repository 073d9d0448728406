"""Lets a sequence go on from the state of another one that has read the same tokens. Engine thread only."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from server.engine.sequence import Sequence
from server.engine.sharing import Share, find_share
from server.events import PrefillAdvanced

log = logging.getLogger(__name__)


def share_prompts(sequences: Iterable[Sequence]) -> tuple[dict[str, Share], list[PrefillAdvanced]]:
    """Fork every state that has come to where a later prompt parts from it; then, who waits for whom by request id.

    Takes the sequences in order of arrival. A state that cannot be forked is no longer waited for.
    """
    shares: dict[str, Share] = {}
    advanced: list[PrefillAdvanced] = []
    earlier: dict[str, Sequence] = {}
    for sequence in sequences:
        if not sequence.prompt_tokens_left:
            continue
        while share := find_share(sequence.prompt, (each.prompt for each in earlier.values())):
            leader = earlier[share.leader_id]
            if leader.prefilled_tokens < share.tokens:
                shares[sequence.request.id] = share
                break
            advanced += _fork(leader, sequence)
        earlier[sequence.request.id] = sequence
    return shares, advanced


def take_over(leader: Sequence, sequences: Iterable[Sequence]) -> list[PrefillAdvanced]:
    """Let the first of those that wait for one go on from where that one is now, for it is about to be dropped.

    The others then wait for the first.
    """
    sequences = tuple(sequences)
    shares, advanced = share_prompts(sequences)
    for sequence in sequences:
        share = shares.get(sequence.request.id)
        saves = leader.prefilled_tokens > sequence.prefilled_tokens
        if saves and share is not None and share.leader_id == leader.request.id:
            return [*advanced, *_fork(leader, sequence)]
    return advanced


def _fork(leader: Sequence, sequence: Sequence) -> list[PrefillAdvanced]:
    try:
        sequence.go_on_from(leader)
    except Exception:
        log.exception("the state of sequence %s could not be forked", leader.request.id)
        sequence.common_tokens.pop(leader.request.id)
        return []
    done = sequence.prefilled_tokens
    return [PrefillAdvanced(sequence.request.id, done, 0, 0.0, cached_tokens=done)]
