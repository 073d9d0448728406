"""Whether an upstream is asked at all: not for a while once it has failed several times. Pure; time is an argument."""

from __future__ import annotations

MOST_FAILURES = 3
"""In a row; then it is left alone."""

OPEN_S = 10.0
"""For so long; then one request, or one look at its health, tries it."""

TRIAL_S = 30.0
"""After so long a trial without an outcome is none, and another may try."""


class Breaker:
    """Counts one upstream's failures in a row."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self._opened_s = 0.0
        self._trial_s: float | None = None

    @property
    def is_open(self) -> bool:
        """True from the third failure in a row until a success."""
        return self.failures >= MOST_FAILURES

    def left_s(self, now: float) -> float:
        """Until it may be tried again; 0 when it may be asked now."""
        return max(0.0, self._opened_s + OPEN_S - now) if self.is_open else 0.0

    def try_now(self, now: float) -> bool:
        """Whether it may be asked now. While it is open, who is told True is the one that tries."""
        if not self.is_open:
            return True
        if self.left_s(now) or (self._trial_s is not None and now < self._trial_s + TRIAL_S):
            return False
        self._trial_s = now
        return True

    def succeed(self) -> None:
        """It answered."""
        self.failures, self._trial_s = 0, None

    def fail(self, now: float) -> None:
        """It did not, or with a fault of its own."""
        self.failures += 1
        self._opened_s, self._trial_s = now, None

    def leave(self) -> None:
        """The trial ended without telling anything: its client left."""
        self._trial_s = None
