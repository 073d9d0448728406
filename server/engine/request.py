"""What the engine is asked for: frozen, token ids in; already checked against the model's ranges."""

from __future__ import annotations

import msgspec

from server.engine.guide import Guide


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is drawn. Ranges are checked by `server.api.generation.sampling` before a request is built."""

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
    frequency_penalty: float = 0.0
    """-2..2; taken from a token's score for each time it was generated; 0 changes nothing."""
    presence_penalty: float = 0.0
    """-2..2; taken from a token's score once it was generated; 0 changes nothing."""
    repetition_penalty: float = 1.0
    """Over 0, up to 2. A positive score of a token in the prompt or generated is divided by it, another multiplied; 1
    changes nothing."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id in the vocabulary, -100..100), added to the score first of all; ids are distinct."""


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
    priority: int = 0
    """Of prompts that wait, those with the lowest number are read first."""
    top_logprobs: int | None = None
    """None: no log-probabilities; else each token's is told, beside those of the 0..20 most likely ones."""
    boundaries: tuple[int, ...] = ()
    """Where in the prompt its messages begin, ascending; the prefix cache takes points there."""
    guide: Guide | None = None
    """Holds the answer to a form. It remembers what was emitted, so each request has its own."""
