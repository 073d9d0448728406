"""The slots: takes one, gives it back, and counts. Lives on the server loop; nothing here waits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from server.admission.decide import Admit, Asked, Load, Refuse, decide
from server.admission.estimate import clamp_wait_s, estimate_slot_s
from server.admission.wording import build_refusal
from server.errors import Refusal
from server.memory_plan import MemoryPlan
from server.policy import AdmissionPolicy
from server.snapshot import StreamView


def _no_streams() -> Sequence[StreamView]:
    return ()


class Permit:
    """One taken slot. Whoever holds it gives it back, once; giving it back again changes nothing."""

    def __init__(self, give_back: Callable[[], None], max_tokens: int = 0) -> None:
        self._give_back: Callable[[], None] | None = give_back
        self.max_tokens = max_tokens
        """How many tokens may be generated; the memory for them is promised to whoever holds this."""

    @property
    def is_held(self) -> bool:
        """True until it is released."""
        return self._give_back is not None

    def release(self) -> None:
        """Give the slot back."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


class Admission:
    """Counts what is in flight and lets in what the policy allows.

    Deciding and taking are one call without an await, so no two requests can get the same slot.
    """

    def __init__(
        self,
        read_streams: Callable[[], Sequence[StreamView]] = _no_streams,
        draw: Callable[[], float] = random.random,
        read_memory: Callable[[], MemoryPlan] = MemoryPlan,
    ) -> None:
        self._read_streams, self._draw, self._read_memory = read_streams, draw, read_memory
        self._in_flight = 0
        self._promised_bytes = 0
        self._draining = False
        self._peak = 0
        self._admitted = 0

    @property
    def in_flight(self) -> int:
        """Slots taken now."""
        return self._in_flight

    @property
    def promised_bytes(self) -> int:
        """Memory that the streams in flight may come to take."""
        return self._promised_bytes

    @property
    def peak_in_flight(self) -> int:
        """The most slots ever taken at once."""
        return self._peak

    @property
    def admitted_total(self) -> int:
        """Permits ever given."""
        return self._admitted

    @property
    def draining(self) -> bool:
        """True after `drain`: nothing new is admitted, what is in flight goes on."""
        return self._draining

    def drain(self) -> None:
        """Admit nothing more."""
        self._draining = True

    def resume(self) -> None:
        """Admit again."""
        self._draining = False

    def find_refusal(self, asked: Asked, policy: AdmissionPolicy) -> Refusal | None:
        """Why this request would be refused now, None when it would be admitted. Takes nothing."""
        decision = self._decide(asked, policy)
        return None if isinstance(decision, Admit) else build_refusal(decision, self._wait_s(decision))

    def lacks_memory(self, policy: AdmissionPolicy, output_tokens: int) -> bool:
        """Whether a place is free and a short prompt with so much output would yet be refused, for want of memory."""
        decision = self._decide(Asked("unknown", 1, None, output_tokens), policy)
        return isinstance(decision, Refuse) and decision.code == "memory_budget_full"

    def admit(self, asked: Asked, policy: AdmissionPolicy) -> Permit:
        """Take a slot, and the memory for it. Raises Refusal."""
        decision = self._decide(asked, policy)
        if isinstance(decision, Refuse):
            raise build_refusal(decision, self._wait_s(decision))
        self._in_flight += 1
        self._promised_bytes += decision.memory_bytes
        self._admitted += 1
        self._peak = max(self._peak, self._in_flight)
        return Permit(partial(self._give_back, decision.memory_bytes), decision.max_tokens)

    def _decide(self, asked: Asked, policy: AdmissionPolicy) -> Admit | Refuse:
        load = Load(self._in_flight, self._draining, self._read_memory(), self._promised_bytes)
        return decide(policy, load, asked)

    def estimate_retry_after_s(self, policy: AdmissionPolicy) -> int:
        """Whole seconds, 1..60, until a request is likely to find a slot."""
        return clamp_wait_s(self._slot_s(self._in_flight - policy.max_in_flight + 1), self._draw())

    def _wait_s(self, refuse: Refuse) -> int | None:
        """Whole seconds, 1..60; None where waiting does not help."""
        match refuse.code:
            case "memory_too_small":
                return None
            case "draining":  # it is done when all is done; its place is then likely taken by a new one
                ends_needed = refuse.in_flight
            case "memory_budget_full":
                ends_needed = 1
            case _:
                ends_needed = (refuse.used or 0) - (refuse.limit or 0) + 1
        return clamp_wait_s(self._slot_s(ends_needed), self._draw())

    def _slot_s(self, ends_needed: int) -> float:
        return estimate_slot_s(self._read_streams(), ends_needed)

    def _give_back(self, memory_bytes: int) -> None:
        assert self._in_flight > 0, "a slot was given back that was never taken"
        self._in_flight -= 1
        self._promised_bytes -= memory_bytes
