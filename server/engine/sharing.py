"""Which prompt waits for another's state, so that what both begin with is computed once. Pure.

A prompt waits only for one that arrived earlier, so nobody waits in a circle; and only while that one is still before
the point where the two part, for a recurrent state cannot be cut back to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from server.engine.scheduler import Need

LEAST_SHARED_TOKENS = 64
"""Tokens that a fork must save. It costs the earlier prompt a chunk that ends early, which is a step of its own: with
nano, 64 tokens more in a chunk take three to four times as long as a step of one token (76 and 19 ms of processor
time on busy cores, at 2,000 tokens of context 74 and 29; 2 x86 cores, MLX 0.32.4, 2026-11-30)."""

_BLOCK_TOKENS = 1024
"""Compared at once, at the speed of C; the block that differs is then looked through."""


class Prompt(msgspec.Struct, frozen=True):
    """What sharing has to know of one sequence whose prompt is not all in its state."""

    request_id: str
    prompt_tokens: int
    done_tokens: int
    """Of them in the state."""
    common_tokens: Mapping[str, int]
    """How many of the first tokens are also those of each prompt that was there before."""
    can_lead: bool = True
    """False when another sequence would lose something by going on from its state."""


class Share(msgspec.Struct, frozen=True):
    """A prompt that goes on from another's state."""

    leader_id: str
    tokens: int
    """Of the leader's prompt in its state when that is done."""


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two prompts have in common from the start."""
    shorter = min(len(one), len(other))
    for first in range(0, shorter, _BLOCK_TOKENS):
        ours, theirs = one[first : first + _BLOCK_TOKENS], other[first : first + _BLOCK_TOKENS]
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            return next((first + place for place, (a, b) in pairs if a != b), shorter)
    return shorter


def find_share(prompt: Prompt, earlier: Iterable[Prompt]) -> Share | None:
    """Whom a prompt should wait for, of those that arrived before it: the one that saves it most.

    A prompt's last token is always its own to run, for the token after it has to be drawn; and it goes on from another
    before that one has run its last, for then that one decodes, or has ended.
    """
    found: Share | None = None
    for other in earlier:
        common = prompt.common_tokens.get(other.request_id, 0)
        tokens = min(common, prompt.prompt_tokens - 1, other.prompt_tokens - 1)
        worth = tokens - prompt.done_tokens >= LEAST_SHARED_TOKENS
        if worth and other.can_lead and other.done_tokens <= tokens and (found is None or tokens > found.tokens):
            found = Share(other.request_id, tokens)
    return found


def hold_back(needs: Sequence[Need], shares: Mapping[str, Share]) -> list[Need]:
    """What there is to plan while some wait for others: without those who wait, by request id in `shares`.

    Whoever is waited for goes first where one of them would, and its chunk ends where the nearest of them parts.
    """
    urgent: dict[str, int] = {}
    ends: dict[str, int] = {}
    for need in reversed(needs):  # the last to arrive first, so that urgency is handed on from one to the next
        share = shares.get(need.request_id)
        if share is not None:
            priority = urgent.get(need.request_id, need.priority)
            urgent[share.leader_id] = min(priority, urgent.get(share.leader_id, priority))
            ends[share.leader_id] = min(share.tokens, ends.get(share.leader_id, share.tokens))
    return [
        _lead(need, urgent[need.request_id], ends[need.request_id]) if need.request_id in ends else need
        for need in needs
        if need.request_id not in shares
    ]


def explain_waiting(prompt: Prompt, cached_tokens: int, share: Share) -> str:
    """What is reused while a prompt waits for another's state, in words."""
    reused = f"{cached_tokens:,} of {prompt.prompt_tokens:,} tokens so far"
    return f"{reused}: another stream computes the next {share.tokens - prompt.done_tokens:,}"


def explain_shared(prompt: Prompt, cached_tokens: int, share: Share) -> str:
    """What was reused once a prompt has gone on from another's state, in words.

    That state holds `share.tokens`, or fewer when the other stream was over before.
    """
    reused = f"{cached_tokens:,} of {prompt.prompt_tokens:,} tokens: another stream computed them"
    if prompt.done_tokens < share.tokens:
        return f"{reused} before it ended"
    parts_at = find_parting(prompt, share)
    return reused if parts_at is None else f"{reused}, and the two part at token {parts_at:,}"


def find_parting(prompt: Prompt, share: Share) -> int | None:
    """Position of the first token that is not the other prompt's too; None when all are."""
    common = prompt.common_tokens.get(share.leader_id, share.tokens)
    return common if common < prompt.prompt_tokens else None


def _lead(need: Need, urgent: int, ends: int) -> Need:
    """The need of one that others wait for."""
    most = ends - need.context_tokens
    if need.chunk_tokens_at_most is not None:
        most = min(most, need.chunk_tokens_at_most)
    return msgspec.structs.replace(need, priority=min(need.priority, urgent), chunk_tokens_at_most=most)
