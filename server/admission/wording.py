"""What a refused client is told: who refused, the limit and its use, and what ends it.

Agents read these sentences with patterns that were made for cloud services: some words and numbers set off retries
without end, or a compaction of the conversation. None of them may appear here; a test holds the list.
"""

from __future__ import annotations

import math

from server.admission.decide import Refuse, find_shortage
from server.errors import Refusal
from server.memory_plan import MemoryPlan, say_bytes


def build_refusal(refuse: Refuse, retry_after_s: int | None) -> Refusal:
    """The error for a decision, with its sentence; None where waiting does not help."""
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


def explain_shortage(memory: MemoryPlan) -> str | None:
    """Why the memory budget lets no stream in, whatever the load; None when it does."""
    shortage = find_shortage(memory)
    return None if shortage is None else f"A stream {_say_shortage(shortage)}"


def _say_shortage(refuse: Refuse) -> str:
    budget_bytes, work = refuse.limit or 0, say_bytes(refuse.work)
    weights = say_bytes((refuse.used or 0) - refuse.work)
    return (
        f"needs at least {say_bytes(refuse.needed, math.ceil)} of memory, and the weights ({weights}) and a step's own "
        f"work ({work}) leave {say_bytes(refuse.left, math.floor)} of {say_bytes(budget_bytes)} "
        "(engine.memory_budget_gib). Raise that limit, or serve a smaller model."
    )


def _say(refuse: Refuse, retry_after_s: int | None) -> str:
    match refuse.code:
        case "in_flight_full":
            return (
                f"Refused by homebase admission: {refuse.used} of {refuse.limit} in flight "
                f"(policy.max_in_flight = {refuse.limit}). A place is free again when a running completion ends, "
                f"likely in about {retry_after_s} s."
            )
        case "memory_budget_full":
            return (
                f"Refused by homebase admission: this needs {say_bytes(refuse.needed, math.ceil)} of memory, and "
                f"{say_bytes(refuse.left, math.floor)} of {say_bytes(refuse.limit or 0)} are free "
                f"(engine.memory_budget_gib; {say_bytes(refuse.work)} of it are kept for a step's own work). Some is "
                f"free again when a running completion ends, likely in about {retry_after_s} s."
            )
        case "memory_too_small":
            return f"Refused by homebase admission: this {_say_shortage(refuse)}"
        case "draining":
            return (
                f"Refused by homebase admission: the server takes nothing new, it ends when its "
                f"{refuse.in_flight} in flight are done."
            )
        case "model_loading":
            return (
                "Refused by homebase admission: the model is still being loaded; requests are taken once it is ready."
            )
