"""Plans one step: which sequences move, and by how many tokens. Pure: reads no clock, does no IO, keeps no state."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LONGEST_CHUNK_S = 1.0
"""What a prefill chunk may take: nobody can be cancelled, and no decoder served, before it is over."""

FIRST_CHUNK_TOKENS = 256
"""Longest chunk before any was measured, doubled while chunks prove fast. The default of `prefill_chunk_tokens`."""


class Need(msgspec.Struct, frozen=True):
    """What planning has to know of one sequence."""

    request_id: str
    prompt_tokens_left: int
    """Prompt tokens that are not in the state yet; 0 while it decodes."""
    last_chunk_step: int
    """Number of the step that ran its newest prefill chunk, -1 before the first."""


class Turn(msgspec.Struct, frozen=True):
    """One sequence's part in a step."""

    request_id: str
    prefill_tokens: int
    """Length of the prefill chunk; 0 for one decode token."""


def plan_step(needs: Iterable[Need], prefill_chunk_tokens: int) -> tuple[Turn, ...]:
    """The turns of the next step, from sequences in order of arrival.

    Every decoding sequence gets a token in every step, and a step holds one prefill chunk at most: so a decoder
    never waits for more than one chunk, however many prompts are waiting. The prompts share those chunks by turns:
    the one served longest ago is next, which puts a newcomer first. The chunk runs before the decode tokens, so that
    these are fresh when the step reports.
    """
    needs = tuple(needs)
    decoding = tuple(Turn(need.request_id, 0) for need in needs if not need.prompt_tokens_left)
    prefilling = [need for need in needs if need.prompt_tokens_left]
    if not prefilling:
        return decoding
    upcoming = min(prefilling, key=lambda need: need.last_chunk_step)  # the first of equals, which arrived first
    chunk = min(upcoming.prompt_tokens_left, max(1, prefill_chunk_tokens))
    return (Turn(upcoming.request_id, chunk), *decoding)


def pace_chunk(limit_tokens: int, ran_tokens: int, seconds: float) -> int:
    """The longest chunk to run next, after one of `ran_tokens` under `limit_tokens` took so many seconds.

    A chunk that took too long shortens the next to what fits; one at the limit that took less than half doubles it.
    `prefill_chunk_tokens` bounds a chunk as well, so this is felt where it asks for more than the machine can do.
    """
    if seconds > LONGEST_CHUNK_S:
        return max(1, int(ran_tokens * LONGEST_CHUNK_S / seconds))
    return limit_tokens * 2 if ran_tokens >= limit_tokens and seconds < LONGEST_CHUNK_S / 2 else limit_tokens
