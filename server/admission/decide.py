"""Whether a request may start now. Pure: policy, load and request are arguments; reads no clock, changes nothing."""

from __future__ import annotations

from typing import Literal

import msgspec

from server.events import Lane
from server.policy import AdmissionPolicy

RefusalCode = Literal["in_flight_full", "draining", "model_loading"]
"""Why a request may not start; part of the API."""


class Load(msgspec.Struct, frozen=True):
    """What admission has let in and what is going on."""

    in_flight: int
    draining: bool = False
    """True once the server takes nothing new because it is about to end."""


class Asked(msgspec.Struct, frozen=True):
    """What a decision needs to know of a request."""

    lane: Lane
    prompt_tokens: int
    """0 when the prompt was not counted, because there is no slot for any request."""
    max_tokens: int | None


class Admit(msgspec.Struct, frozen=True):
    """It may start."""


class Refuse(msgspec.Struct, frozen=True):
    """It may not, for now."""

    code: RefusalCode
    limit: int
    used: int
    """The limit that says no and its use."""


def decide(policy: AdmissionPolicy, load: Load, asked: Asked) -> Admit | Refuse:
    """The decision. Every lane counts against the same limit; what a request asks for changes nothing yet."""
    if load.draining:
        return Refuse("draining", limit=0, used=load.in_flight)
    if load.in_flight >= policy.max_in_flight:
        return Refuse("in_flight_full", limit=policy.max_in_flight, used=load.in_flight)
    return Admit()
