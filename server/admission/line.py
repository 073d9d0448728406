"""Who may wait for a place, for how long, and who is next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.admission.clients import find_client_policy
from server.admission.decide import Admit, Asked, Load, RefusalCode, Refuse, decide
from server.events import Lane
from server.policy import AdmissionPolicy, ClientPolicy

WAITABLE: tuple[RefusalCode, ...] = (
    "in_flight_full",
    "child_lane_full",
    "context_budget_full",
    "decode_floor",
    "memory_budget_full",
)
"""What ends when something in flight ends."""

OVERFLOWS: tuple[RefusalCode, ...] = (*WAITABLE, "memory_too_small")
"""What another server would not say."""

AUXILIARY_LIMIT = 64
"""Side requests that may wait at once: `queue_limit` is for those that an agent's work waits for."""

_RANK: dict[Lane, int] = {"parent": 0, "unknown": 0, "child": 1, "auxiliary": 1}


class InLine(msgspec.Struct, frozen=True):
    """One request that waits."""

    number: int
    """In the order of arrival."""
    asked: Asked


def find_patience_s(policy: AdmissionPolicy, asked: Asked) -> float:
    """How long a request may wait for a place; 0 when it may not."""
    if asked.place.lane == "auxiliary" and policy.auxiliary_wait_s:
        return policy.auxiliary_wait_s
    return policy.queue_wait_s if _find_behavior(policy, asked) == "queue" else 0.0


def has_room(policy: AdmissionPolicy, line: Sequence[InLine], asked: Asked) -> bool:
    """Whether one more of this kind may wait."""
    is_aside = _is_aside(policy, asked)
    waiting = sum(_is_aside(policy, each.asked) == is_aside for each in line)
    return waiting < (AUXILIARY_LIMIT if is_aside else policy.queue_limit)


def wants_overflow(policy: AdmissionPolicy, asked: Asked, refuse: Refuse) -> bool:
    """Whether the policy sends it elsewhere."""
    is_for_overflow = _find_behavior(policy, asked) == "overflow" and bool(policy.overflow_to)
    return is_for_overflow and refuse.code in OVERFLOWS


def order_line(line: Sequence[InLine]) -> list[InLine]:
    """Parents, and who may be one, before children and side requests; within that as they came."""
    return sorted(line, key=lambda each: (_RANK[each.asked.place.lane], each.number))


def pick_next(policy: AdmissionPolicy, load: Load, line: Sequence[InLine]) -> tuple[InLine, Admit] | None:
    """Who of the line may start now; None when nobody may.

    Nobody overtakes, unless a limit holds the one before that is not for all: of its session, its client, of children.
    """
    for each in order_line(line):
        decision = decide(policy, load, each.asked)
        if isinstance(decision, Admit):
            return each, decision
        if decision.is_for_all:
            return None
    return None


def find_hopeless(policy: AdmissionPolicy, load: Load, asked: Asked) -> Refuse | None:
    """Why an idle server would refuse it, so that waiting does not help; None when it would not."""
    idle = load if load.draining else msgspec.structs.replace(load, held=(), forecast=None)
    decision = decide(policy, idle, asked)
    return decision if isinstance(decision, Refuse) else None


def _is_aside(policy: AdmissionPolicy, asked: Asked) -> bool:
    return asked.place.lane == "auxiliary" and bool(policy.auxiliary_wait_s)


def _find_behavior(policy: AdmissionPolicy, asked: Asked) -> str:
    own = find_client_policy(policy, asked.place.key, asked.place.client) or ClientPolicy()
    return own.limit_behavior or policy.limit_behavior
