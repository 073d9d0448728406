"""Counters and histograms by family and label values. They only ever rise, and nothing is ever dropped from them.

A histogram is its buckets: a million observations take no more room, and no longer to show, than one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping

from server.metrics.families import Family

Labels = tuple[str, ...]
"""Values, in the order of the family's labels."""


class Histogram:
    """How many observations fell where, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value; one that equals a bound is within it."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self._counts)

    def cumulate(self) -> list[int]:
        """For each bound, and for no bound at the end, how many observations were not above it."""
        total, counts = 0, list[int]()
        for count in self._counts:
            total += count
            counts.append(total)
        return counts


class Series:
    """Every counter and histogram that has moved."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        self._histograms: defaultdict[str, dict[Labels, Histogram]] = defaultdict(dict)

    def add(self, family: Family, amount: float, *labels: str) -> None:
        """Raise a counter; `amount` is never negative."""
        assert amount >= 0, f"{family.name} would fall"
        counts = self._counts[family.name]
        counts[labels] = counts.get(labels, 0) + amount

    def observe(self, family: Family, value: float, *labels: str) -> None:
        """Count one value of a histogram."""
        histograms = self._histograms[family.name]
        if labels not in histograms:
            histograms[labels] = Histogram(family.bounds)
        histograms[labels].observe(value)

    def counts(self, family: Family, model: str) -> Mapping[Labels, float]:
        """A counter by its labels; what is known of it and has not moved is 0, for the model that is served now."""
        return dict.fromkeys(known_labels(family, model), 0.0) | self._counts[family.name]

    def histograms(self, family: Family, model: str) -> Mapping[Labels, Histogram]:
        """A histogram by its labels, empty ones included, as with `counts`."""
        empty = {labels: Histogram(family.bounds) for labels in known_labels(family, model)}
        return empty | self._histograms[family.name]


def known_labels(family: Family, model: str) -> tuple[Labels, ...]:
    """The label values of a family that are known before anything was counted."""
    first: Labels = (model,) if family.labels[:1] == ("model_name",) else ()
    if len(first) == len(family.labels):
        return (first,)
    return tuple((*first, value) for value in family.known)
