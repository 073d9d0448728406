"""What a refused client is told: who refused, the limit and its use, and what ends it.

Agents read these sentences with patterns that were made for cloud services: some words and numbers set off retries
without end, or a compaction of the conversation. None of them may appear here; a test holds the list.
"""

from __future__ import annotations

import math
import re

from server.admission.decide import Refuse, find_shortage
from server.errors import Refusal
from server.memory_plan import MemoryPlan, say_bytes

_REFUSED = "Refused by homebase admission:"

_NUMBER = re.compile(r"\d[\d,]*")

_STATUS = re.compile(r"429|50[0234]|524")
"""Digits that agents take for the answer of a cloud service, wherever they stand."""

_THOUSANDS = ("", " thousand", " million", " billion", " trillion")


def build_refusal(
    refuse: Refuse, retry_after_s: int | None, *, overflow: bool = False, waited_s: float | None = None
) -> Refusal:
    """The error for a decision, with its sentence. No time where waiting does not help; `waited_s` if it waited."""
    waited = f" It waited {waited_s:.0f} s for that." if waited_s is not None else ""
    return Refusal(
        f"{_REFUSED} {avoid_statuses(_say(refuse, retry_after_s) + waited)}",
        code=refuse.code,
        limit=refuse.limit,
        used=refuse.used,
        retry_after_s=retry_after_s,
        key=refuse.key,
        overflow=overflow,
    )


def build_loading_refusal(retry_after_s: int = 5) -> Refusal:
    """The error for a request that comes before the model is in memory."""
    return build_refusal(Refuse("model_loading"), retry_after_s)


def explain_shortage(memory: MemoryPlan) -> str | None:
    """Why the memory budget lets no stream in, whatever the load; None when it does."""
    shortage = find_shortage(memory)
    return None if shortage is None else f"A stream {_say_shortage(shortage)}"


def avoid_statuses(text: str) -> str:
    """The text with each number that holds the digits of such a status partly in words: `12 thousand 5 hundred`."""
    return _NUMBER.sub(lambda found: _say_number(found[0]) if _STATUS.search(found[0]) else found[0], text)


def _say_number(written: str) -> str:
    groups = f"{int(written.replace(',', '')):,}".split(",")
    if len(groups) > len(_THOUSANDS):
        return "more than a quadrillion"
    named = zip(groups, reversed(_THOUSANDS[: len(groups)]), strict=True)
    return " ".join(f"{_say_group(group)}{name}" for group, name in named if int(group))


def _say_group(group: str) -> str:
    if not _STATUS.search(group):
        return str(int(group))
    hundreds, rest = divmod(int(group), 100)
    return f"{hundreds} hundred {rest}" if rest else f"{hundreds} hundred"


def _say_shortage(refuse: Refuse) -> str:
    budget_bytes, work = int(refuse.limit or 0), say_bytes(refuse.work)
    weights = say_bytes(int(refuse.used or 0) - refuse.work)
    return (
        f"needs at least {say_bytes(refuse.needed, math.ceil)} of memory, and the weights ({weights}) and a step's own "
        f"work ({work}) leave {say_bytes(refuse.left, math.floor)} of {say_bytes(budget_bytes)} "
        "(engine.memory_budget_gib). Raise that limit, or serve a smaller model."
    )


def _say(refuse: Refuse, retry_after_s: int | None) -> str:
    match refuse.code:
        case "in_flight_full":
            return _say_in_flight(refuse, retry_after_s)
        case "child_lane_full":
            return _say_children(refuse, retry_after_s)
        case "depth_exceeded":
            return (
                f"a child at depth {refuse.used} is deeper than agents may start children here "
                f"({_name_limit(refuse)}). This holds for good: do the work in the agent above it."
            )
        case "context_budget_full":
            return _say_budget(refuse, retry_after_s)
        case "decode_floor":
            return (
                f"with one more stream the slowest would decode at {refuse.used or 0:,.1f} tok/s "
                f"({'as measured here' if refuse.basis == 'measured' else 'an estimate'}), and at least "
                f"{refuse.limit or 0:,g} are wanted ({refuse.key}). {_say_end('There is room again', retry_after_s)}"
            )
        case "memory_budget_full":
            return (
                f"this needs {say_bytes(refuse.needed, math.ceil)} of memory, and "
                f"{say_bytes(refuse.left, math.floor)} of {say_bytes(int(refuse.limit or 0))} are free "
                f"(engine.memory_budget_gib; {say_bytes(refuse.work)} of it are kept for a step's own work). "
                f"{_say_end('Some is free again', retry_after_s)}"
            )
        case "memory_too_small":
            return f"this {_say_shortage(refuse)}"
        case "draining":
            return f"the server takes nothing new; it waits for its {refuse.in_flight} in flight to be done."
        case "model_loading":
            return "the model is still being loaded; requests are taken once it is ready."


def _say_in_flight(refuse: Refuse, retry_after_s: int | None) -> str:
    if refuse.key == "policy.queue_limit":
        return (
            f"{refuse.used:,} others wait for a place, and {refuse.limit:,} may ({refuse.key}). "
            f"{_say_end('Their turn comes', retry_after_s)}"
        )
    if not refuse.limit:
        return f"this client may have nothing in flight here ({_name_limit(refuse)}). This holds for good."
    whose = "" if refuse.key == "policy.max_in_flight" else " of this client's"
    end = f"when {'a running completion' if not whose else 'one of them'} ends"
    return (
        f"{refuse.used:,} of {refuse.limit:,}{whose} in flight ({_name_limit(refuse)}). A place is free again {end}, "
        f"likely in about {retry_after_s} s."
    )


def _say_children(refuse: Refuse, retry_after_s: int | None) -> str:
    advice = "Do not start another: do its work in the parent, or wait for the running child."
    if not refuse.limit:
        return (
            f"no children are taken here ({_name_limit(refuse)}). This holds for good: do the work in the parent agent."
        )
    if refuse.key == "policy.max_in_flight":
        return (
            f"{refuse.used:,} of {refuse.limit:,} in flight ({_name_limit(refuse)}), and the last place is kept for "
            f"this child's parent, which is not in flight now. {_say_end('A child has a place', retry_after_s)}"
        )
    whose = "children of all agents" if refuse.key.endswith("sampling_limit") else "children of this parent"
    return (
        f"{refuse.used:,} of {refuse.limit:,} {whose} in flight ({_name_limit(refuse)}). {advice} "
        f"A place is free again when one of them ends, likely in about {retry_after_s} s."
    )


def _say_budget(refuse: Refuse, retry_after_s: int | None) -> str:
    need = f"prompt and output may come to {refuse.needed:,} tokens, and"
    if retry_after_s is None:
        return (
            f"{need} all streams together may have {refuse.limit:,} by the policy's budget of tokens. "
            "This holds for good: ask for fewer output tokens, or shorten the messages."
        )
    return (
        f"{need} {refuse.left:,} of {refuse.limit:,} are free in the policy's budget of tokens for all streams "
        f"together. {_say_end('Some are free again', retry_after_s)}"
    )


def _say_end(what: str, retry_after_s: int | None) -> str:
    if retry_after_s is None:
        return "This holds for good."
    return f"{what} when a running completion ends, likely in about {retry_after_s} s."


def _name_limit(refuse: Refuse) -> str:
    """The limit and its value. A client's own is named without the client: that is a text of somebody's making."""
    key = refuse.key
    if key.startswith("policy.clients."):
        key = f"policy.clients, {key.rpartition('.')[2]}"
    return f"{key} = {refuse.limit:,}"
