"""The n-gram hash: published numbers of the real checkpoint, and rows against a scan written out in plain Python."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.ngrams import NgramHash, derive_multipliers, derive_offsets, derive_primes

GEOMETRY: dict[str, Any] = {
    "vocab_size": 248_320,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "hc_count": 4,
    "hc_lowrank": 320,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "eos_token_id": 248_044,
    "ple_layer_ids": [2],
    "ple_embed_dim": 2560,
    "heads_per_ngram": 8,
}


@pytest.fixture
def real() -> FlashNextConfig:
    """The geometry of the real checkpoint."""
    return msgspec.convert(GEOMETRY, FlashNextConfig)


def test_multipliers_are_those_of_the_real_checkpoint(real: FlashNextConfig) -> None:
    assert derive_multipliers(real, 0).tolist() == [23703573157769, 20109073645365, 8052911324071]


def test_primes_and_offsets_are_those_of_the_real_checkpoint(real: FlashNextConfig) -> None:
    primes = derive_primes(real, 0)
    last_digits = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171]
    assert primes.tolist() == [20_000_000 + digits for digits in last_digits]
    assert derive_offsets(primes)[:3].tolist() == [0, 20_000_003, 40_000_026]
    assert int(primes.sum()) == 320_001_446


def test_several_layers_share_no_prime(real: FlashNextConfig) -> None:
    first, second = derive_primes(real, 0), derive_primes(real, 1)
    assert first.max() < second.min()
    assert derive_multipliers(real, 0).tolist() != derive_multipliers(real, 1).tolist()


def find_by_scan(ngram_hash: NgramHash, tokens: list[int], place: int) -> list[int]:
    """The rows of one token, by looking back from it one token at a time."""
    seen = [tokens[place]]
    ended = False
    for back in range(1, ngram_hash.context + 1):
        earlier = tokens[place - back] if place >= back else ngram_hash.eos
        ended = ended or earlier == ngram_hash.eos
        seen.append(ngram_hash.eos if ended else earlier)
    rows: list[int] = []
    for head, (prime, offset) in enumerate(zip(ngram_hash.primes, ngram_hash.offsets, strict=True)):
        mixed = 0
        for token, multiplier in list(zip(seen, ngram_hash.multipliers, strict=True))[
            : head // ngram_hash.heads_per_ngram + 2
        ]:
            mixed ^= token * int(multiplier)
        rows.append(mixed % int(prime) + int(offset))
    return rows


@settings(max_examples=50, deadline=None)
@given(
    tokens=st.lists(st.sampled_from([0, 3, 3, 5, 70_000, 248_319]), min_size=1, max_size=24),
    size=st.integers(2, 4),
    heads=st.integers(1, 3),
    cut=st.integers(0, 24),
)
def test_rows_equal_a_scan_and_do_not_depend_on_where_a_prompt_is_cut(
    tokens: list[int], size: int, heads: int, cut: int
) -> None:
    config = msgspec.convert(
        GEOMETRY | {"ngram_size": size, "heads_per_ngram": heads, "ngram_vocab_size_base": 211}, FlashNextConfig
    )
    primes = derive_primes(config, 0)
    ngram_hash = NgramHash(derive_multipliers(config, 0), primes, derive_offsets(primes), eos=3)
    before = [3] * ngram_hash.context
    expected = [find_by_scan(ngram_hash, tokens, place) for place in range(len(tokens))]
    assert ngram_hash.find_rows(before, tokens).tolist() == expected
    head, tail = tokens[:cut], tokens[cut:]
    if head and tail:
        recent = [*before, *head][-ngram_hash.context :]
        assert ngram_hash.find_rows(recent, tail).tolist() == expected[cut:]


def test_an_end_of_text_token_sees_its_own_text_and_the_next_one_nothing() -> None:
    multipliers, primes = np.array([1, 1_000, 1_000_000]), np.array([10**12, 10**12 + 1])
    ngram_hash = NgramHash(multipliers, primes, np.array([0, 0]), eos=0)
    rows = ngram_hash.find_rows((0, 0), (7, 0, 5))
    assert rows.tolist() == [[7, 7], [0 ^ 7_000, 0 ^ 7_000], [5, 5]]
