"""What the engine is asked for: frozen, token ids in; already checked against the model's ranges."""

from __future__ import annotations

import msgspec


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is drawn. Ranges are checked by `server.api.wire` before a request is built."""

    temperature: float = 1.0
    """0..2; 0 is greedy."""
    top_p: float = 1.0
    """0 < top_p <= 1; 1 keeps all."""
    top_k: int = 0
    """0 keeps all; otherwise 1..vocabulary."""
    min_p: float = 0.0
    """0..1; 0 keeps all."""
    seed: int | None = None
    """0..2**63-1; None draws a fresh one. The same seed gives the same tokens, alone or beside a sibling."""


class EngineRequest(msgspec.Struct, frozen=True):
    """One sequence to generate."""

    id: str
    prompt_ids: tuple[int, ...]
    """At least one; each 0..vocabulary-1."""
    max_tokens: int
    """At least 1; prompt and max_tokens together fit the context limit."""
    sampling: Sampling
    stop_ids: frozenset[int]
    """Token ids that end the sequence; the ending id itself is emitted last."""
