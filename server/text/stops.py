"""Finds stop strings in text that arrives in pieces. Pure: knows no tokens and no model."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is complete, and holds back whatever may still become one.

    The stop that is complete first wins; of two that are complete at the same character, the longer one. So what is
    shown does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text, None while there was none."""

    @property
    def has_stops(self) -> bool:
        """False when all text passes."""
        return bool(self._stops)

    @property
    def held_text(self) -> str:
        """What is held back now."""
        return self._held

    def feed(self, text: str) -> str:
        """Add a piece; the result is what may be shown. After a match nothing is."""
        if self.matched is not None:
            return ""
        pending = self._held + text
        found = self._find(pending)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return pending[:start]
        keep = self._longest_prefix_at_end(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def release(self) -> str:
        """The text is over: what was held back is no stop string and may be shown."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        """Where the stop that is complete first begins, and which it is."""
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _longest_prefix_at_end(self, text: str) -> int:
        """Length of the longest end of `text` with which some stop string begins."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
