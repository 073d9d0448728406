"""How one upstream is: what its answers tell, and a look at it now and then while it is in use or has failed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Literal

from server.errors import UpstreamUnavailable
from server.policy import UpstreamPolicy
from server.snapshot import UpstreamView
from server.upstreams.breaker import MOST_FAILURES, Breaker

LOOK_S = 15.0
"""Between two looks at it."""

IN_USE_S = 60.0
"""It is in use for so long after its last request."""

LEAST_LOOK_S = 0.5
"""Between two looks, when it may be tried again."""


class Health:
    """One upstream's state. Server loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.breaker = Breaker()
        self.in_flight = 0
        self._requests = 0
        self._failures = 0
        self._failure = ""
        self._used_s: float | None = None
        self._heard_s: float | None = None

    @property
    def is_watched(self) -> bool:
        """True while it is worth a look: in use, or failing."""
        if self.in_flight or self.breaker.failures:
            return True
        return self._used_s is not None and self._clock() - self._used_s < IN_USE_S

    @property
    def next_look_s(self) -> float:
        """Until the next look at it."""
        left_s = self.breaker.left_s(self._clock())
        return max(LEAST_LOOK_S, left_s) if self.breaker.is_open else LOOK_S

    def begin(self, upstream: UpstreamPolicy) -> None:
        """A request is about to be sent. Raises UpstreamUnavailable while it is left alone."""
        now = self._clock()
        self._requests += 1
        self._used_s = now
        if not self.breaker.try_now(now):
            self._failures += 1
            raise UpstreamUnavailable(
                f"The upstream {upstream.name} has failed {self.breaker.failures} times in a row, last because: "
                f"{self._failure} It is tried again in about {max(1, round(self.breaker.left_s(now)))} s.",
                upstream.name,
            )
        self.in_flight += 1

    def end(self) -> None:
        """A request is over, however."""
        self.in_flight -= 1
        self._used_s = self._clock()

    def heard(self) -> None:
        """It answered, or goes on answering."""
        self.breaker.succeed()
        self._heard_s = self._clock()

    def failed(self, why: str) -> None:
        """A request failed by its fault; `why` is a sentence."""
        self._failures += 1
        self._note(why)

    def left(self) -> None:
        """A request ended before anything was heard, and not by its fault."""
        self.breaker.leave()

    async def look(self, ask: Callable[[], Awaitable[str]]) -> None:
        """See whether it is well; `ask` gives why not, or nothing. While it is left alone nobody looks."""
        if not self.breaker.try_now(self._clock()):
            return
        if why := await ask():
            self._note(why)
        else:
            self.heard()

    def view(self, upstream: UpstreamPolicy) -> UpstreamView:
        """What there is to show."""
        now = self._clock()
        return UpstreamView(
            name=upstream.name,
            state=self._name_state(),
            models=upstream.models,
            governed=upstream.governed,
            in_flight=self.in_flight,
            requests_total=self._requests,
            failures_total=self._failures,
            failures_in_row=self.breaker.failures,
            last_failure=self._failure,
            heard_ago_s=None if self._heard_s is None else now - self._heard_s,
            retry_in_s=self.breaker.left_s(now) if self.breaker.is_open else None,
        )

    def _note(self, why: str) -> None:
        self._failure = why
        self.breaker.fail(self._clock())

    def _name_state(self) -> Literal["unused", "up", "failing", "down"]:
        if self.breaker.failures:
            return "down" if self.breaker.failures >= MOST_FAILURES else "failing"
        return "unused" if self._heard_s is None else "up"
