"""The slots: takes one, gives it back, and counts. Lives on the server loop; nothing here waits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from server.admission.decide import Admit, Asked, Load, Refuse, decide
from server.admission.estimate import clamp_wait_s, estimate_slot_s
from server.admission.wording import build_refusal
from server.errors import Refusal
from server.policy import AdmissionPolicy
from server.snapshot import StreamView


def _no_streams() -> Sequence[StreamView]:
    return ()


class Permit:
    """One taken slot. Whoever holds it gives it back, once; giving it back again changes nothing."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

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
    ) -> None:
        self._read_streams, self._draw = read_streams, draw
        self._in_flight = 0
        self._draining = False
        self._peak = 0
        self._admitted = 0

    @property
    def in_flight(self) -> int:
        """Slots taken now."""
        return self._in_flight

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
        decision = decide(policy, Load(self._in_flight, self._draining), asked)
        if isinstance(decision, Admit):
            return None
        return build_refusal(decision, self._wait_s(decision))

    def admit(self, asked: Asked, policy: AdmissionPolicy) -> Permit:
        """Take a slot. Raises Refusal."""
        refusal = self.find_refusal(asked, policy)
        if refusal is not None:
            raise refusal
        self._in_flight += 1
        self._admitted += 1
        self._peak = max(self._peak, self._in_flight)
        return Permit(self._give_back)

    def estimate_retry_after_s(self, policy: AdmissionPolicy) -> int:
        """Whole seconds, 1..60, until a request is likely to find a slot."""
        return clamp_wait_s(self._slot_s(self._in_flight - policy.max_in_flight + 1), self._draw())

    def _wait_s(self, refuse: Refuse) -> int:
        # A draining server is done when all is done; its place is then likely taken by a new one.
        ends_needed = refuse.used if refuse.code == "draining" else refuse.used - refuse.limit + 1
        return clamp_wait_s(self._slot_s(ends_needed), self._draw())

    def _slot_s(self, ends_needed: int) -> float:
        return estimate_slot_s(self._read_streams(), ends_needed)

    def _give_back(self) -> None:
        assert self._in_flight > 0, "a slot was given back that was never taken"
        self._in_flight -= 1
