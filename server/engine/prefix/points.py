"""At which tokens of a prompt a point is taken, so that a later prompt can begin there. Pure.

Rows can be cut at any token; the rest of a hybrid state (recurrent states, convolution windows) is right only where
it was taken, and is large: with the real model's sizes 110 MiB, as much as 4,060 tokens of rows at 28 KB each. So
points are few, and stand where prompts part:

- before the assistant's turn opens, or at the prompt's last token but one: what comes after is written differently
  once the reply is history (its reasoning may be gone), and a prompt that is sent again runs at least one token;
- where the prompt parts from what is cached: where one did, others will, and the shared head is then held once;
- after the first message, which is where the prompts of one client's sessions part;
- every so many tokens between, at a message's start where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

LEAST_GAP_TOKENS = 64
"""A point closer than this after another saves less than it costs: the prefill chunk that ends there is a step."""

LEAST_END_TOKENS = 16
"""The same for the point at the end, which is the one that the next turn of a chat begins at."""

TAIL_TOKENS = 64
"""A message that begins so close to the end is what opens the assistant's turn; templates take 3 to 20 tokens."""

POINT_SHARE = 0.5
"""Points every so many tokens may take this much of what the rows take: 8,120 tokens apart with the real sizes,
which is what a prompt that parts just before one has to run again."""

LEAST_SPACING_TOKENS = 512
UNKNOWN_SPACING_TOKENS = 4096
"""Before any point was taken, and for states without rows."""


def find_spacing(fixed_bytes: int, row_bytes: float) -> int:
    """Tokens between two points that nothing else asks for, from the sizes of a point and of a token's rows."""
    if not row_bytes:
        return UNKNOWN_SPACING_TOKENS
    return max(LEAST_SPACING_TOKENS, int(fixed_bytes / (row_bytes * POINT_SHARE)))


def plan_points(
    prompt_tokens: int, restored: int, common: int, boundaries: Sequence[int], spacing: int
) -> tuple[int, ...]:
    """Where the prefill of a prompt stops to take a point, ascending.

    The first `restored` tokens are in the state, the first `common` ones are cached; `boundaries` are where its
    messages begin, ascending.
    """
    end = _find_end(prompt_tokens, boundaries)
    first_message = next((position for position in boundaries if position > 0), 0)
    chosen = [restored]
    for position in sorted({common, first_message, end}):
        gap = LEAST_END_TOKENS if position == end else LEAST_GAP_TOKENS
        if chosen[-1] + gap <= position <= end:  # of two close by, the first serves for both
            chosen.append(position)
    between = [position for first, last in pairwise(chosen) for position in _fill(first, last, boundaries, spacing)]
    return tuple(sorted([*chosen[1:], *between]))


def _find_end(prompt_tokens: int, boundaries: Sequence[int]) -> int:
    """The last point: a token at least is left to run, for the one after the prompt has to be drawn."""
    last = max((position for position in boundaries if position < prompt_tokens), default=0)
    return last if last and prompt_tokens - last <= TAIL_TOKENS else prompt_tokens - 1


def _fill(first: int, last: int, boundaries: Sequence[int], spacing: int) -> list[int]:
    """Points between two others, never further apart than the spacing, at boundaries if that wastes less than half."""
    filled: list[int] = []
    while last - first > spacing:
        fitting = [position for position in boundaries if first + spacing // 2 <= position <= first + spacing]
        first = max(fitting, default=first + spacing)
        if last - first < LEAST_GAP_TOKENS:
            break
        filled.append(first)
    return filled
