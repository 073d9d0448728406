"""Whether a request may start now. Pure: policy, load and request are arguments; reads no clock, changes nothing."""

from __future__ import annotations

from typing import Literal

import msgspec

from server.events import Lane
from server.memory_plan import MemoryPlan
from server.policy import AdmissionPolicy

RefusalCode = Literal["in_flight_full", "memory_budget_full", "memory_too_small", "draining", "model_loading"]
"""Why a request may not start; part of the API."""

LEAST_OUTPUT_TOKENS = 4096
"""Output that there must be memory for, if so much may be generated. Agents ask for far more than they use, so what is
beyond it is granted as memory allows."""

SHORTEST_TOKENS = 2
"""Of the shortest stream that there is: a token of prompt, and one of output."""


class Load(msgspec.Struct, frozen=True):
    """What admission has let in and what is going on."""

    in_flight: int
    draining: bool = False
    """True once the server takes nothing new because it is about to end."""
    memory: MemoryPlan = MemoryPlan()
    promised_bytes: int = 0
    """What the streams in flight may come to take."""


class Asked(msgspec.Struct, frozen=True):
    """What a decision needs to know of a request."""

    lane: Lane
    prompt_tokens: int
    """0 when the prompt was not counted, because there is no slot for any request."""
    max_tokens: int | None
    """As the client has it; None when it leaves that open."""
    output_tokens: int = 0
    """What its context would leave room for, and what the client asked for at most."""


class Admit(msgspec.Struct, frozen=True):
    """It may start."""

    max_tokens: int = 0
    """So many tokens may be generated: `output_tokens`, or fewer where memory ends sooner."""
    memory_bytes: int = 0
    """What it may then come to take."""


class Refuse(msgspec.Struct, frozen=True):
    """It may not, for now."""

    code: RefusalCode
    limit: int | None = None
    used: int | None = None
    """The limit that says no and its use; None where no limit does. Bytes for memory, where what a step's own work
    takes is in use too."""
    needed: int = 0
    """For memory, what this request would need at least, in bytes."""
    work: int = 0
    """For memory, what is kept for a step's own work, in bytes."""
    in_flight: int = 0
    """For a server that ends, what it waits for."""

    @property
    def left(self) -> int:
        """What of the limit is not in use; 0 where no limit says no."""
        return max(0, (self.limit or 0) - (self.used or 0))


def decide(policy: AdmissionPolicy, load: Load, asked: Asked) -> Admit | Refuse:
    """The decision. Every lane counts against the same limits."""
    if load.draining:
        return Refuse("draining", in_flight=load.in_flight)
    least_tokens = asked.prompt_tokens + min(asked.output_tokens, LEAST_OUTPUT_TOKENS)
    if (shortage := find_shortage(load.memory, least_tokens)) is not None:
        return shortage
    if load.in_flight >= policy.max_in_flight:
        return Refuse("in_flight_full", limit=policy.max_in_flight, used=load.in_flight)
    if not load.memory.budget_bytes:
        return Admit(asked.output_tokens)
    return _fit_memory(load, asked, policy.max_in_flight - load.in_flight)


def find_shortage(memory: MemoryPlan, tokens: int = SHORTEST_TOKENS) -> Refuse | None:
    """Why a stream of so many tokens does not even fit alone, so that waiting does not help; None when it does."""
    needed = memory.stream.at(max(tokens, SHORTEST_TOKENS))
    if not memory.budget_bytes or needed <= memory.room_bytes:
        return None
    used = memory.model_bytes + memory.work_bytes
    return Refuse("memory_too_small", memory.budget_bytes, used, needed=needed, work=memory.work_bytes)


def _fit_memory(load: Load, asked: Asked, places: int) -> Admit | Refuse:
    """The same by memory alone, for one of so many places that are free.

    A client that leaves open how much it wants shares what is free with those that may still come.
    """
    memory, cost = load.memory, load.memory.stream
    least_tokens = min(asked.output_tokens, LEAST_OUTPUT_TOKENS)
    free_bytes = memory.room_bytes - load.promised_bytes
    least_bytes = cost.at(asked.prompt_tokens + least_tokens)
    if least_bytes > free_bytes:
        used = memory.model_bytes + memory.work_bytes + load.promised_bytes
        return Refuse("memory_budget_full", memory.budget_bytes, used, needed=least_bytes, work=memory.work_bytes)
    share_bytes = free_bytes if asked.max_tokens is not None else free_bytes // places
    within = cost.tokens_within(share_bytes) - asked.prompt_tokens
    granted = max(least_tokens, min(asked.output_tokens, within))
    return Admit(granted, cost.at(asked.prompt_tokens + granted))
