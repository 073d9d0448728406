"""Prompts of a wanted length, no two with the same beginning, so that no cache has any of them. Pure."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

_TEXT = (
    "table window river stone paper garden letter number engine bridge winter market circle thread mirror "
    "harbor silver forest signal candle planet orange yellow basket copper ladder meadow needle pocket ribbon"
)
WORDS = _TEXT.split()

ASK = "Now write a long program in Python that counts these words in many ways, with every function spelled out."
"""Ends the prompt: something that a model does not end early."""

TOLERANCE = 0.02
"""How far from the wanted length, of it, a prompt may be."""
_TRIES = 6


def write_prompt(words: int, seed: int) -> str:
    """A message of so many words and the question."""
    dice = random.Random(seed)
    return " ".join([f"Case {dice.randrange(10**9)}:", *(dice.choice(WORDS) for _ in range(words)), "\n\n" + ASK])


async def fit_prompt(tokens: int, seed: int, count: Callable[[str], Awaitable[int]]) -> str:
    """A prompt of about so many tokens by `count`; the shortest that there is where that is already longer."""
    low = await count(write_prompt(0, seed))
    words = max(0, tokens - low)
    for _ in range(_TRIES):
        prompt = write_prompt(words, seed)
        length = await count(prompt)
        if words == 0 or abs(length - tokens) <= max(1, tokens * TOLERANCE):
            return prompt
        words = max(0, round(words * (tokens - low) / max(1, length - low)))
    return write_prompt(words, seed)
