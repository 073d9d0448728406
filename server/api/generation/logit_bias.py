"""Reads `logit_bias`: an object from token ids, written as strings, to what is added to their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from server.api.decoding import show_value
from server.errors import InvalidRequest

BIAS_MOST = 100
"""A bias lies within this on either side of 0; at its ends a token is forced or never drawn."""


def read_logit_bias(given: Mapping[str, Any] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """(token id, bias) in the order of the ids, each id once. Raises InvalidRequest."""
    return tuple(sorted(_read_entries(given or {}, vocab_size)))


def _read_entries(given: Mapping[str, Any], vocab_size: int) -> Iterator[tuple[int, float]]:
    for key, bias in given.items():
        # Only the one way to write a number: two spellings of an id would be two biases for one token.
        if not (key.isascii() and key.isdigit() and len(key) < 20 and str(int(key)) == key and int(key) < vocab_size):
            raise InvalidRequest(
                f"The keys of `logit_bias` must be token ids from 0 to {vocab_size - 1:,}, which is the served model's "
                f"vocabulary, written as strings; {show_value(key)} was given. Leave that entry out.",
                param="logit_bias",
            )
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -BIAS_MOST <= bias <= BIAS_MOST:
            raise InvalidRequest(
                f"The values of `logit_bias` must be numbers from -{BIAS_MOST} to {BIAS_MOST}; {show_value(bias)} was "
                f"given for token {key}.",
                param="logit_bias",
            )
        yield int(key), float(bias)
