"""How much a model is asked to think: from OpenAI's words for it to what its chat template takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.errors import InvalidRequest

NO_EFFORT = "none"

NEAREST_EFFORTS: Mapping[str, tuple[str, ...]] = {
    "minimal": ("minimal", "low"),
    "low": ("low", "minimal"),
    "medium": ("medium",),
    "high": ("high", "xhigh", "max"),
    "xhigh": ("xhigh", "max", "high"),
    "max": ("max", "xhigh", "high"),
}
"""Efforts as OpenAI's and Anthropic's clients say them, and the words that templates have for each, the nearest first;
Qwen's have xhigh, medium, low."""


def plan_thinking(effort: str, template: str) -> dict[str, Any]:
    """What to hand a chat template, of which this is the text, for a `reasoning_effort`. Raises InvalidRequest.

    Of the words near to the effort the first that stands in the template between quotes; the effort itself in a
    template that lists none of them. To ask for any effort but none is to ask for thoughts, so those are switched on
    where a template has them off.
    """
    if effort == NO_EFFORT:
        return {"enable_thinking": False}
    if effort not in NEAREST_EFFORTS:
        raise InvalidRequest(
            f"`reasoning_effort` is {effort[:40]!r}; it must be one of {', '.join((NO_EFFORT, *NEAREST_EFFORTS))}.",
            param="reasoning_effort",
        )
    known = (word for word in NEAREST_EFFORTS[effort] if f"'{word}'" in template or f'"{word}"' in template)
    return {"enable_thinking": True, "reasoning_effort": next(known, effort)}
