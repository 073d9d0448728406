"""Whether a request may start now. Pure: policy, load and request are arguments; reads no clock, changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from server.admission.clients import find_client_policy
from server.admission.lanes import find_lane_limit
from server.admission.place import Place
from server.memory_plan import MemoryPlan
from server.policy import AdmissionPolicy

RefusalCode = Literal[
    "in_flight_full",
    "child_lane_full",
    "depth_exceeded",
    "context_budget_full",
    "decode_floor",
    "memory_budget_full",
    "memory_too_small",
    "draining",
    "model_loading",
]
"""Why a request may not start; part of the API."""

LEAST_OUTPUT_TOKENS = 4096
"""Output that there must be memory for, if so much may be generated. Agents ask for far more than they use, so what is
beyond it is granted as memory allows."""

SHORTEST_TOKENS = 2
"""Of the shortest stream that there is: a token of prompt, and one of output."""


class Expectation(Protocol):
    """How slow the slowest stream would be, now or when the newcomer ends."""

    @property
    def lowest_tps(self) -> float:
        """Tokens per second of decoding."""
        ...

    @property
    def basis(self) -> Literal["estimate", "measured"]:
        """What that is known by."""
        ...

    @property
    def ttft_s(self) -> float | None:
        """Until the newcomer's first token; None when nothing tells."""
        ...


class Held(msgspec.Struct, frozen=True):
    """One taken slot."""

    request_id: str
    place: Place
    context_tokens: int = 0
    """What its context may grow to."""
    memory_bytes: int = 0
    """What that may come to take."""


class Load(msgspec.Struct, frozen=True):
    """What admission has let in and what is going on."""

    held: tuple[Held, ...] = ()
    """The slots that are taken, the oldest first."""
    draining: bool = False
    """True once the server takes nothing new, for now or because it is about to end."""
    memory: MemoryPlan = MemoryPlan()
    forecast: Forecast | None = None
    """None where nobody forecasts."""

    @property
    def in_flight(self) -> int:
        """Slots that are taken."""
        return len(self.held)

    @property
    def promised_bytes(self) -> int:
        """What the streams in flight may come to take."""
        return sum(each.memory_bytes for each in self.held)

    @property
    def context_tokens(self) -> int:
        """What their contexts may grow to, together."""
        return sum(each.context_tokens for each in self.held)


class Asked(msgspec.Struct, frozen=True):
    """What a decision needs to know of a request."""

    place: Place
    prompt_tokens: int
    """0 when the prompt was not counted, because there is no slot for any request."""
    max_tokens: int | None
    """As the client has it; None when it leaves that open."""
    output_tokens: int = 0
    """What its context would leave room for, and what the client asked for at most."""
    request_id: str = ""


Forecast = Callable[[Asked, int], Expectation | None]
"""Takes a newcomer and the output that it is granted in tokens; None while nothing can be said."""


class Admit(msgspec.Struct, frozen=True):
    """It may start."""

    max_tokens: int = 0
    """So many tokens may be generated: `output_tokens`, or fewer where memory or the budget of tokens ends sooner."""
    memory_bytes: int = 0
    """What it may then come to take."""


class Refuse(msgspec.Struct, frozen=True):
    """It may not, for now."""

    code: RefusalCode
    limit: int | float | None = None
    used: int | float | None = None
    """The limit that says no and its use; None where no limit does. Bytes for memory, where what a step's own work
    takes is in use too; tokens for the budget of contexts; for the floor, the decode rate that would be left."""
    needed: int = 0
    """For memory, what this request would need at least, in bytes; for the budget of contexts, in tokens."""
    work: int = 0
    """For memory, what is kept for a step's own work, in bytes."""
    in_flight: int = 0
    """For a server that takes nothing new, what it waits for."""
    key: str = ""
    """Dotted key of the limit that says no; empty where none does."""
    basis: str = ""
    """For the floor: `estimate` or `measured`."""
    is_for_all: bool = True
    """False when it is a limit of this session or client, or of children, that others may not meet."""

    @property
    def left(self) -> int:
        """What of the limit is not in use; 0 where no limit says no."""
        return max(0, int((self.limit or 0) - (self.used or 0)))


def decide(policy: AdmissionPolicy, load: Load, asked: Asked) -> Admit | Refuse:
    """The decision. What is never allowed is told first, then what one's own lane says, then what all share."""
    if load.draining:
        return Refuse("draining", in_flight=load.in_flight)
    if (refuse := _find_lane_refusal(policy, load, asked)) is not None:
        return refuse
    least_tokens = asked.prompt_tokens + min(asked.output_tokens, LEAST_OUTPUT_TOKENS)
    if (shortage := find_shortage(load.memory, least_tokens)) is not None:
        return shortage
    if load.in_flight >= policy.max_in_flight:
        return Refuse("in_flight_full", policy.max_in_flight, load.in_flight, key="policy.max_in_flight")
    admit = _fit_room(policy, load, asked)
    return _check_floor(policy, load, asked, admit) if isinstance(admit, Admit) else admit


def find_shortage(memory: MemoryPlan, tokens: int = SHORTEST_TOKENS) -> Refuse | None:
    """Why a stream of so many tokens does not even fit alone, so that waiting does not help; None when it does."""
    needed = memory.stream.at(max(tokens, SHORTEST_TOKENS))
    if not memory.budget_bytes or needed <= memory.room_bytes:
        return None
    used = memory.model_bytes + memory.work_bytes
    return Refuse(
        "memory_too_small", memory.budget_bytes, used, needed, memory.work_bytes, key="engine.memory_budget_gib"
    )


def _find_lane_refusal(policy: AdmissionPolicy, load: Load, asked: Asked) -> Refuse | None:
    """The limits of depth, lane and client."""
    own = find_client_policy(policy, asked.place.key, asked.place.client)
    found = find_lane_limit(policy, own, [each.place for each in load.held], asked.place)
    return None if found is None else Refuse(found.code, found.limit, found.used, key=found.key, is_for_all=False)


def _fit_room(policy: AdmissionPolicy, load: Load, asked: Asked) -> Admit | Refuse:
    """How much it may generate by the budget of tokens and by memory, for one of the places that are free.

    A client that leaves open how much it wants shares what is free with those that may still come.
    """
    places = policy.max_in_flight - load.in_flight
    least_tokens = min(asked.output_tokens, LEAST_OUTPUT_TOKENS)
    granted = asked.output_tokens
    if budget := policy.context_budget_tokens:
        free_tokens, is_open = budget - load.context_tokens, asked.max_tokens is None
        needed = asked.prompt_tokens + (least_tokens if is_open else granted)
        if needed > free_tokens:
            key = "policy.context_budget_tokens"
            return Refuse("context_budget_full", budget, load.context_tokens, needed, key=key)
        if is_open:
            granted = max(least_tokens, min(granted, free_tokens // places - asked.prompt_tokens))
    memory, cost = load.memory, load.memory.stream
    if not memory.budget_bytes:
        return Admit(granted)
    free_bytes = memory.room_bytes - load.promised_bytes
    least_bytes = cost.at(asked.prompt_tokens + least_tokens)
    if least_bytes > free_bytes:
        used, key = memory.model_bytes + memory.work_bytes + load.promised_bytes, "engine.memory_budget_gib"
        return Refuse("memory_budget_full", memory.budget_bytes, used, least_bytes, memory.work_bytes, key=key)
    share_bytes = free_bytes if asked.max_tokens is not None else free_bytes // places
    within = cost.tokens_within(share_bytes) - asked.prompt_tokens
    granted = max(least_tokens, min(granted, within))
    return Admit(granted, cost.at(asked.prompt_tokens + granted))


def _check_floor(policy: AdmissionPolicy, load: Load, asked: Asked, admit: Admit) -> Admit | Refuse:
    """The same, unless some stream would then decode too slowly. Alone, a stream is as fast as it gets."""
    floor = policy.min_decode_tps
    if not floor or load.forecast is None or not load.held or not asked.prompt_tokens:
        return admit
    expected = load.forecast(asked, admit.max_tokens)
    if expected is None or expected.lowest_tps >= floor:
        return admit
    return Refuse("decode_floor", floor, expected.lowest_tps, key="policy.min_decode_tps", basis=expected.basis)
