"""Prompts come out as long as they are meant to be, and no two begin alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.bench.prompts import ASK, fit_prompt, write_prompt


@given(tokens=st.integers(60, 3000), per_word=st.floats(0.8, 2.5), template=st.integers(0, 40))
async def test_a_prompt_has_the_wanted_length_whatever_a_word_costs(tokens: int, per_word: float, template: int):
    async def count(prompt: str) -> int:
        return template + round(per_word * len(prompt.split()))

    length = await count(await fit_prompt(tokens, 7, count))
    shortest = await count(write_prompt(0, 7))
    assert length == shortest if tokens <= shortest else abs(length - tokens) <= max(3, tokens * 0.02)


def test_prompts_differ_from_their_first_words_on_and_are_the_same_again():
    first, second = write_prompt(50, 1), write_prompt(50, 2)
    assert first[:12] != second[:12]
    assert first == write_prompt(50, 1)
    assert first.endswith(ASK)
