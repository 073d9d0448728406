"""What a refused client is told: who refused, the limit and its use, and what ends it.

Agents read these sentences with patterns that were made for cloud services: some words and numbers set off retries
without end, or a compaction of the conversation. None of them may appear here; a test holds the list.
"""

from __future__ import annotations

from server.admission.decide import Refuse
from server.errors import Refusal
from server.memory_plan import say_bytes


def build_refusal(refuse: Refuse, retry_after_s: int) -> Refusal:
    """The error for a decision, with its sentence."""
    return Refusal(
        _say(refuse, retry_after_s),
        code=refuse.code,
        limit=refuse.limit,
        used=refuse.used,
        retry_after_s=retry_after_s,
    )


def build_loading_refusal(retry_after_s: int = 5) -> Refusal:
    """The error for a request that comes before the model is in memory."""
    return build_refusal(Refuse("model_loading"), retry_after_s)


def _say(refuse: Refuse, retry_after_s: int) -> str:
    match refuse.code:
        case "in_flight_full":
            return (
                f"Refused by homebase admission: {refuse.used} of {refuse.limit} in flight "
                f"(policy.max_in_flight = {refuse.limit}). A place is free again when a running completion ends, "
                f"likely in about {retry_after_s} s."
            )
        case "memory_budget_full":
            budget_bytes = refuse.limit or 0
            free_bytes = max(0, budget_bytes - (refuse.used or 0))
            if refuse.is_alone:
                return (
                    f"Refused by homebase admission: this needs {say_bytes(refuse.needed)} of memory, and the weights "
                    f"leave {say_bytes(free_bytes)} of {say_bytes(budget_bytes)} (engine.memory_budget_gib). Raise "
                    "that limit, or serve a smaller model."
                )
            return (
                f"Refused by homebase admission: this needs {say_bytes(refuse.needed)} of memory, and "
                f"{say_bytes(free_bytes)} of {say_bytes(budget_bytes)} are free (engine.memory_budget_gib). Some is "
                f"free again when a running completion ends, likely in about {retry_after_s} s."
            )
        case "draining":
            return (
                f"Refused by homebase admission: the server takes nothing new, it ends when its "
                f"{refuse.in_flight} in flight are done."
            )
        case "model_loading":
            return (
                "Refused by homebase admission: the model is still being loaded; requests are taken once it is ready."
            )
