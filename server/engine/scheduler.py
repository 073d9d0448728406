"""Plans one step: which sequences move, and by how many tokens. Pure: reads no clock, does no IO, keeps no state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from server.engine.cost import StepLoad, predict_s
from server.events import StepCost

LONGEST_CHUNK_S = 1.0
"""What a prefill chunk may take: nobody can be cancelled before it is over."""

CAUTION = 2.5
"""Mean errors of prediction that are kept in hand. Of normal errors 95 % are below 2.06 of their mean size, and steps
have longer tails. In simulated prefills of 16,000 tokens beside a decoder, with steps noisy by 5 to 25 %, the 95th of
100 steps took 482, 469 and 455 ms of 500 at 3, and 501, 512 and 527 at 2."""

FIRST_CHUNK_TOKENS = 256
"""Longest chunk before any was measured. Then a chunk is at most twice the longest that has run: the cost model is
not trusted further than that beyond what it has seen."""

PATIENCE_CHUNKS = 16
"""How many chunks of more urgent prompts a prompt waits for its own next one, times the prompts that wait like it: so
urgent prompts keep 16 of 17 chunks, and none stands still because they never end."""


class Need(msgspec.Struct, frozen=True):
    """What planning has to know of one sequence."""

    request_id: str
    prompt_tokens_left: int
    """Prompt tokens that are not in the state yet; 0 while it decodes."""
    last_chunk_step: int
    """Number of the step that ran its newest prefill chunk, -1 before the first."""
    priority: int = 0
    """Of prompts that wait, those with the lowest number are read first."""
    context_tokens: int = 0
    """Tokens in the state."""
    draft_tokens: int = 0
    """Drafts to verify while it decodes."""
    primes: bool = False
    """True when the MTP head has to read its prompt too."""
    chunk_tokens_at_most: int | None = None
    """Where its next chunk has to end, because another prompt goes on from there."""
    came_step: int = -1
    """Number of the last step before it came."""


class Turn(msgspec.Struct, frozen=True):
    """One sequence's part in a step."""

    request_id: str
    prefill_tokens: int
    """Length of the prefill chunk; 0 while it decodes."""
    draft_tokens: int = 0
    """Drafts to verify after its newest token."""


class ChunkLimits(msgspec.Struct, frozen=True):
    """What bounds a prefill chunk."""

    policy_tokens: int
    longest_ran_tokens: int
    """The longest chunk that has run; 0 before the first."""
    decode_stall_s: float
    """What a step may take while someone decodes."""
    cost: StepCost = StepCost()


def plan_step(needs: Iterable[Need], limits: ChunkLimits, step: int) -> tuple[Turn, ...]:
    """The turns of a step, by its number, from sequences in order of arrival.

    Every decoding sequence moves in every step, and a step holds one prefill chunk at most: so a decoder never waits
    for more than one chunk, however many prompts are waiting.
    """
    needs = tuple(needs)
    decoding = [need for need in needs if not need.prompt_tokens_left]
    turns = tuple(Turn(need.request_id, 0, need.draft_tokens) for need in decoding)
    prefilling = [need for need in needs if need.prompt_tokens_left]
    if not prefilling:
        return turns
    upcoming = choose_prompt(prefilling, step)
    return (Turn(upcoming.request_id, size_chunk(upcoming, decoding, limits)), *turns)


def choose_prompt(prefilling: Sequence[Need], step: int) -> Need:
    """Whose prompt is read in a step: of those that wait, in order of arrival.

    The lowest priority number goes first until it is read. Equals share the chunks by turns. A newcomer goes before all
    that are under way, as long as none of them has waited for more than a round; then it is whoever has waited longest,
    or short prompts that never end would stop a long one (203 of 205 tokens were read, then none for 10 s).
    """
    urgent = min(need.priority for need in prefilling)
    lesser = [need for need in prefilling if need.priority > urgent]
    if lesser and step - _last_step(longest := min(lesser, key=_last_step)) > PATIENCE_CHUNKS * len(lesser):
        return longest
    equals = [need for need in prefilling if need.priority == urgent]
    under_way = [need for need in equals if need.last_chunk_step >= 0]
    if under_way and step - min(map(_last_step, under_way)) > len(under_way):
        return min(equals, key=_last_step)
    return min(equals, key=lambda need: need.last_chunk_step)  # of newcomers, the first arrived


def _last_step(need: Need) -> int:
    """The step since which it waits."""
    return max(need.last_chunk_step, need.came_step)


def size_chunk(need: Need, decoding: Iterable[Need], limits: ChunkLimits) -> int:
    """How many prompt tokens to run: as many as keep the step within the time it may take."""
    load = sum_load(decoding)
    allowed_s = _allow_s(load, limits)
    least = 1
    most = min(need.prompt_tokens_left, limits.policy_tokens, max(FIRST_CHUNK_TOKENS, 2 * limits.longest_ran_tokens))
    most = most if need.chunk_tokens_at_most is None else min(most, need.chunk_tokens_at_most)
    while least < most:  # the longest whose step fits
        middle = (least + most + 1) // 2
        if predict_s(limits.cost, _add_chunk(load, need, middle)) <= allowed_s:
            least = middle
        else:
            most = middle - 1
    return least


def _allow_s(load: StepLoad, limits: ChunkLimits) -> float:
    """What a step with a chunk may be predicted to take; predictions miss, so some of the time is kept in hand.

    Where decoding alone takes most of it, a chunk still gets as long as that: the prompt would never be read else.
    """
    in_hand = 1 + min(1.0, CAUTION * limits.cost.error_ratio)
    if not load.sequences:
        return LONGEST_CHUNK_S / in_hand
    fair_s = 2 * predict_s(limits.cost, load)
    return min(LONGEST_CHUNK_S, max(limits.decode_stall_s, fair_s)) / in_hand


def sum_load(decoding: Iterable[Need]) -> StepLoad:
    """What the decoding sequences ask of a step."""
    needs = tuple(decoding)
    drafts = [need.draft_tokens for need in needs]
    return StepLoad(
        sequences=len(needs),
        rows=len(needs) + sum(drafts),
        wide_sequences=sum(1 for depth in drafts if depth),
        context_tokens=sum(need.context_tokens for need in needs),
        draft_calls=max(drafts, default=0),
        draft_rows=2 * sum(drafts),  # the drafts, and the rows that catch up with what was accepted: about as many
    )


def _add_chunk(load: StepLoad, need: Need, tokens: int) -> StepLoad:
    """The same step with a prefill chunk in it. The head reads the chunk before at the same time, about as long."""
    return msgspec.structs.replace(
        load,
        prefill_tokens=tokens,
        prefill_context_tokens=need.context_tokens,
        draft_calls=max(load.draft_calls, int(need.primes)),
        draft_rows=load.draft_rows + tokens * need.primes,
    )
