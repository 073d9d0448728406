"""Leads requests that have come through admission again, under other limits. Pure: time is that of the arrivals.

How long each stream ran is taken as it was: that more at once make each slower is told by the rates, not here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from server.admission.decide import Admit, Asked, Held, Load, Refuse, decide
from server.admission.place import Place
from server.forecast.arrivals import Arrival
from server.memory_plan import MemoryPlan
from server.policy import AdmissionPolicy

REFUSALS_SHOWN = 50


class ReplayedRefusal(msgspec.Struct, frozen=True):
    """One that would have been refused."""

    time_s: float
    session: str
    code: str


class Replay(msgspec.Struct, frozen=True):
    """What these limits would have done."""

    arrivals: int
    admitted: int
    refused_by_code: dict[str, int]
    peak_in_flight: int
    first_s: float | None
    last_s: float | None
    """When the first and the last one came; Unix time."""
    refusals: tuple[ReplayedRefusal, ...] = ()
    """Newest first, at most 50."""


class _Running(msgspec.Struct, frozen=True):
    held: Held
    ends_s: float


def replay(policy: AdmissionPolicy, memory: MemoryPlan, arrivals: Iterable[Arrival]) -> Replay:
    """Who of them would have been admitted, and who refused by which code; nobody comes back after a refusal."""
    running: list[_Running] = []
    refusals: list[ReplayedRefusal] = []
    ordered = sorted(arrivals, key=lambda arrival: arrival.time_s)
    peak = 0
    for arrival in ordered:
        running = [each for each in running if each.ends_s > arrival.time_s]
        decision = _decide(policy, memory, running, arrival)
        if isinstance(decision, Refuse):
            refusals.append(ReplayedRefusal(arrival.time_s, arrival.session, decision.code))
            continue
        running.append(_Running(_hold(arrival, decision), arrival.time_s + arrival.duration_s))
        peak = max(peak, len(running))
    return Replay(
        arrivals=len(ordered),
        admitted=len(ordered) - len(refusals),
        refused_by_code=dict(Counter(refusal.code for refusal in refusals)),
        peak_in_flight=peak,
        first_s=ordered[0].time_s if ordered else None,
        last_s=ordered[-1].time_s if ordered else None,
        refusals=tuple(reversed(refusals[-REFUSALS_SHOWN:])),
    )


def _decide(
    policy: AdmissionPolicy, memory: MemoryPlan, running: Sequence[_Running], arrival: Arrival
) -> Admit | Refuse:
    """The same decision as a request's own; the floor is left out, for nobody knows how fast they were then."""
    load = Load(tuple(each.held for each in running), memory=memory)
    output = arrival.completion_tokens if arrival.max_tokens is None else arrival.max_tokens
    return decide(policy, load, Asked(_place(arrival), arrival.prompt_tokens, arrival.max_tokens, output))


def _hold(arrival: Arrival, admit: Admit) -> Held:
    return Held("", _place(arrival), arrival.prompt_tokens + admit.max_tokens, admit.memory_bytes)


def _place(arrival: Arrival) -> Place:
    return Place(arrival.session, arrival.parent_session, arrival.depth, arrival.lane, arrival.client, "", arrival.key)
