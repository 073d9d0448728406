"""A token with its log-probability and those of its alternatives, as the OpenAI dialects write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from server.api.generation.scores import Scored

UNLIKELY = -9999.0
"""The dialect's least log-probability: JSON has no infinity."""


def encode_score(scored: Scored, spell: Callable[[int], bytes]) -> msgspec.Raw:
    """One entry of a list of log-probabilities; `spell` gives a token's bytes."""
    score = scored.score
    entry = _build_likely(spell(scored.token_id), score.logprob)
    entry["top_logprobs"] = [_build_likely(spell(token_id), logprob) for token_id, logprob in score.top]
    return msgspec.Raw(msgspec.json.encode(entry))


def read_likely(spelled: bytes, logprob: float) -> tuple[str, float]:
    """A token and its log-probability; a token that is part of a character has U+FFFD for its text."""
    return spelled.decode("utf-8", "replace"), max(logprob, UNLIKELY)


def _build_likely(spelled: bytes, logprob: float) -> dict[str, Any]:
    token, shown = read_likely(spelled, logprob)
    return {"token": token, "logprob": shown, "bytes": list(spelled)}
