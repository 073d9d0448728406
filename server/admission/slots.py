"""The slots: takes one, gives it back, keeps the line for them. Lives on the server loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from server.admission.decide import LEAST_OUTPUT_TOKENS, Admit, Asked, Forecast, Held, Load, Refuse, decide
from server.admission.estimate import COURSES, Rates, clamp_wait_s, estimate_ends, estimate_waits_s
from server.admission.lengths import Lengths
from server.admission.line import (
    WAITABLE,
    InLine,
    find_hopeless,
    find_patience_s,
    has_room,
    order_line,
    pick_next,
    wants_overflow,
)
from server.admission.place import Place
from server.admission.waiting import Waiting
from server.admission.wording import build_refusal
from server.errors import HomebaseError, Refusal
from server.memory_plan import MemoryPlan
from server.policy import AdmissionPolicy
from server.snapshot import LinePlace, StreamView

WEIGHED = 4
"""A line of up to so many is estimated from several courses of things; a longer one from the medians alone."""

ESTIMATED = 32
"""Of a line, so many from its head are told when they may start; who stands farther back learns its place only."""

NOBODY = Place("", None, 0, "unknown", "", "")
"""Asks for nothing; stands for any request in the operator's figures."""


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
    """Knows what is in flight and lets in what the policy allows.

    Deciding and taking are one call without an await, so no two requests can get the same slot.
    """

    def __init__(
        self,
        read_streams: Callable[[], Sequence[StreamView]] = _no_streams,
        draw: Callable[[], float] = random.random,
        read_memory: Callable[[], MemoryPlan] = MemoryPlan,
        read_policy: Callable[[], AdmissionPolicy] = AdmissionPolicy,
        forecast: Forecast | None = None,
    ) -> None:
        """`read_policy` is asked for those that wait; who comes brings the policy that it was judged by."""
        self._read_streams, self._draw, self._read_memory = read_streams, draw, read_memory
        self._read_policy, self._forecast = read_policy, forecast
        self._lengths = Lengths()
        self._waiting = Waiting[Permit]()
        self._held: dict[int, Held] = {}
        self._draining = False
        self._peak = 0
        self._admitted = 0

    @property
    def in_flight(self) -> int:
        """Slots taken now."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._waiting.line)

    @property
    def promised_bytes(self) -> int:
        """Memory that the streams in flight may come to take."""
        return self._load().promised_bytes

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
        """Admit nothing more; who waits is refused."""
        self._draining = True
        self.serve_line()

    def resume(self) -> None:
        """Admit again."""
        self._draining = False

    def places(self) -> Iterator[tuple[str, Place]]:
        """Id and place of every request in flight or in line."""
        yield from ((held.request_id, held.place) for held in self._held.values())
        yield from ((each.asked.request_id, each.asked.place) for each in self._waiting.line)

    def note_end(self, stream: StreamView) -> None:
        """Learn from an answer that is over."""
        self._lengths.note(stream)

    def expect_left(self, stream: StreamView) -> float:
        """Tokens that a stream in flight is likely to generate yet."""
        return self._lengths.expect_left(stream)

    def expect_output(self, asked: Asked, max_tokens: int) -> int:
        """Tokens of an answer that may have so many: as many as is usual, for the program that asks."""
        return round(self._lengths.expect_output(asked.place, max_tokens))

    def find_refusal(self, asked: Asked, policy: AdmissionPolicy) -> Refusal | None:
        """Why this request would be refused now, None when it would be admitted or may wait. Takes nothing."""
        decision = self._decide(asked, policy)
        if isinstance(decision, Admit) or self._may_wait(asked, policy, decision):
            return None
        return self._refuse(asked, policy, decision)

    def lacks_memory(self, policy: AdmissionPolicy, output_tokens: int) -> bool:
        """Whether a place is free and a short prompt with so much output would yet be refused, for want of memory."""
        decision = self._decide(Asked(NOBODY, 1, None, output_tokens), policy)
        return isinstance(decision, Refuse) and decision.code == "memory_budget_full"

    def admit(self, asked: Asked, policy: AdmissionPolicy) -> Permit:
        """Take a slot, and the memory for it, now. Raises Refusal."""
        decision = self._decide(asked, policy)
        if isinstance(decision, Refuse):
            raise self._refuse(asked, policy, decision)
        return self._take(asked, decision)

    async def enter(
        self, asked: Asked, policy: AdmissionPolicy, on_wait: Callable[[], object] = lambda: None
    ) -> Permit:
        """The same, after a wait where the policy grants one; `on_wait` is called when that begins.

        Raises Refusal, and what `cancel_waiting` was given. Where nothing has to be waited for, the loop gets no turn.
        """
        decision = self._decide(asked, policy)
        if isinstance(decision, Admit) and not self._is_held_back(asked, policy):
            return self._take(asked, decision)
        if not self._may_wait(asked, policy, decision):
            raise self._refuse(asked, policy, _find_full_line(policy, decision, self.waiting))
        on_wait()
        patience_s = find_patience_s(policy, asked)
        try:
            return await self._waiting.wait(asked, patience_s, partial(self._give_up, asked), Permit.release)
        except BaseException:  # it stood in the way of others, perhaps
            self.serve_line()
            raise

    def cancel_waiting(self, request_id: str, error: HomebaseError) -> bool:
        """End the wait of a request with an error; False when it is not in line."""
        found = next((each for each in self._waiting.line if each.asked.request_id == request_id), None)
        if found is None:
            return False
        self._waiting.fail(found.number, lambda _: error)
        self.serve_line()
        return True

    def fail_line(self, error: HomebaseError) -> None:
        """Send everyone away with an error: there is nothing to wait for."""
        for each in self._waiting.line:
            self._waiting.fail(each.number, lambda _: error)

    def serve_line(self) -> None:
        """Let in who may start now and send away who never may: after each change of load, policy or memory."""
        if not self._waiting.line:
            return
        policy = self._read_policy()
        for each in self._waiting.line:
            if (refuse := find_hopeless(policy, self._load(), each.asked)) is not None:
                self._waiting.fail(each.number, partial(self._refuse, each.asked, policy, refuse))
        while (picked := pick_next(policy, self._load(), self._waiting.line)) is not None:
            entry, admit = picked
            self._waiting.settle(entry.number, self._take(entry.asked, admit))
            if policy.min_decode_tps:
                return  # the forecast knows of it only once it has begun; the next one's turn comes then

    def line_places(self) -> dict[str, LinePlace]:
        """Where each request in line stands, by its id."""
        line = order_line(self._waiting.line)
        if not line:
            return {}
        waits = self._estimate_waits(self._read_policy(), line[:ESTIMATED])
        padded = waits + [None] * (len(line) - len(waits))
        return {
            each.asked.request_id: LinePlace(position, wait_s)
            for position, (each, wait_s) in enumerate(zip(line, padded, strict=True), 1)
        }

    def _load(self) -> Load:
        return Load(tuple(self._held.values()), self._draining, self._read_memory(), self._forecast)

    def _decide(self, asked: Asked, policy: AdmissionPolicy) -> Admit | Refuse:
        return decide(policy, self._load(), asked)

    def _take(self, asked: Asked, admit: Admit) -> Permit:
        self._admitted += 1
        number, tokens = self._admitted, asked.prompt_tokens + admit.max_tokens
        self._held[number] = Held(asked.request_id, asked.place, tokens, admit.memory_bytes)
        self._peak = max(self._peak, len(self._held))
        return Permit(partial(self._give_back, number), admit.max_tokens)

    def _give_back(self, number: int) -> None:
        assert number in self._held, "a slot was given back that was never taken"
        del self._held[number]
        self.serve_line()

    def _is_held_back(self, asked: Asked, policy: AdmissionPolicy) -> bool:
        """True for one that could start, and may wait, while others wait that it must not overtake."""
        if not self._waiting.line or not find_patience_s(policy, asked):
            return False
        own = self._waiting.build_entry(asked)
        picked = pick_next(policy, self._load(), (*self._waiting.line, own))
        return picked is None or picked[0] != own

    def _may_wait(self, asked: Asked, policy: AdmissionPolicy, decision: Admit | Refuse) -> bool:
        if not find_patience_s(policy, asked) or not has_room(policy, self._waiting.line, asked):
            return False
        return isinstance(decision, Admit) or (
            decision.code in WAITABLE and find_hopeless(policy, self._load(), asked) is None
        )

    def _give_up(self, asked: Asked, waited_s: float) -> Refusal:
        policy = self._read_policy()
        decision = self._decide(asked, policy)
        return self._refuse(asked, policy, _find_full_line(policy, decision, self.waiting), waited_s)

    def _refuse(self, asked: Asked, policy: AdmissionPolicy, refuse: Refuse, waited_s: float | None = None) -> Refusal:
        line = [*order_line(self._waiting.line)[:ESTIMATED], InLine(-1, asked)]
        wait_s = self._estimate_waits(policy, line)[-1]
        retry_after_s = None if wait_s is None else clamp_wait_s(wait_s, self._draw())
        overflow = wants_overflow(policy, asked, refuse)
        return build_refusal(refuse, retry_after_s, overflow=overflow, waited_s=waited_s)

    def _estimate_waits(self, policy: AdmissionPolicy, line: Sequence[InLine]) -> list[float | None]:
        courses = COURSES if len(line) <= WEIGHED else 1
        ends = estimate_ends(self._read_streams(), self._lengths, self._forecast_rates(line[-1].asked), courses)
        return estimate_waits_s(policy, self._load(), [each.asked for each in line], ends)

    def _forecast_rates(self, asked: Asked) -> Rates:
        """What the forecast says of rates, for streams that have none while none that is over has told one."""
        if self._forecast is None or (self._lengths.prefill_tps and self._lengths.decode_tps):
            return Rates()
        expected = self._forecast(asked, LEAST_OUTPUT_TOKENS)
        if expected is None:
            return Rates()
        return Rates(asked.prompt_tokens / expected.ttft_s if expected.ttft_s else None, expected.lowest_tps)


def _find_full_line(policy: AdmissionPolicy, decision: Admit | Refuse, waiting: int) -> Refuse:
    """Why one is refused that could start by itself: others wait before it, as many as may."""
    if isinstance(decision, Refuse):
        return decision
    return Refuse("in_flight_full", policy.queue_limit, waiting, key="policy.queue_limit")
