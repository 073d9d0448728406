"""What the prefix cache answers for a prompt."""

from __future__ import annotations

import msgspec

from server.engine.drafting import DraftTrail
from server.models.cache import SequenceState


class Restored(msgspec.Struct, frozen=True):
    """What of a prompt need not be computed, and why not more."""

    state: SequenceState | None
    """None when nothing is reused."""
    trail: DraftTrail | None
    tokens: int
    """In the state."""
    points: tuple[int, ...]
    """Where the rest of the prompt stops to be taken in."""
    diverged_at: int | None
    """Position of the first token that is not cached; None when all are, or nothing is kept at all."""
    why: str
    """In words."""


NOTHING_KEPT = Restored(None, None, 0, (), None, "")


def explain(prompt_tokens: int, usable: int, diverged_at: int | None) -> str:
    """What was reused, in words."""
    reused = f"{usable:,} of {prompt_tokens:,} tokens" if usable else "nothing"
    if diverged_at is None:
        return reused if usable else f"{reused}: all of it is cached, but without a point to begin at"
    if not diverged_at:
        return f"{reused}: nothing cached begins like this prompt"
    return f"{reused}: it parts from what is cached at token {diverged_at:,}"
