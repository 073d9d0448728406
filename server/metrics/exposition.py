"""Answers a scrape: the tally and a snapshot as Prometheus text, or OpenMetrics for a scraper that asks for it.

A registry of its own: what prometheus-client would add by itself about Python and the process is not in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from server.metrics import families
from server.metrics.families import FAMILIES, Family
from server.metrics.gauges import read_gauges
from server.metrics.series import Histogram, Labels
from server.metrics.tally import Tally
from server.snapshot import Snapshot

_QUALITY = re.compile(r"[01](\.\d{0,3})?")


class Exposition:
    """Everything that is counted and everything that is so now. Server loop only.

    What a scrape takes depends on the number of series alone, and that has a bound: no label is a client's to choose.
    """

    def __init__(self, tally: Tally, build_snapshot: Callable[[], Snapshot]) -> None:
        self._tally, self._build_snapshot = tally, build_snapshot
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type, by the scraper's Accept header."""
        if wants_openmetrics(accept):
            # By default the library writes `_` for the colon in a name here, and in the other form it does not.
            text = openmetrics.generate_latest(self._registry, escaping=openmetrics.ALLOWUTF8)
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Metric]:
        """Every family that has something to say."""
        snapshot = self._build_snapshot()
        series, model, now = self._tally.series, snapshot.model.id, self._read(snapshot)
        for family in FAMILIES:
            if family.kind == "histogram":
                yield _build_histogram(family, series.histograms(family, model))
            elif family in now:
                yield _build_values(family, now[family])
            elif family.kind == "counter" and (counts := series.counts(family, model)):
                yield _build_values(family, counts)

    def _read(self, snapshot: Snapshot) -> Mapping[Family, Mapping[Labels, float]]:
        """What is so now, by family and labels."""
        now: defaultdict[Family, dict[Labels, float]] = defaultdict(dict)
        for family, labels, value in read_gauges(snapshot):
            now[family][labels] = value
        if (acceptance := self._tally.acceptance_ratio) is not None:
            now[families.ACCEPTANCE][()] = acceptance
        return now


def wants_openmetrics(accept: str) -> bool:
    """True when an Accept header names OpenMetrics, and rates it no lower than plain text."""
    openmetrics_quality = _find_quality(accept, "application/openmetrics-text")
    return openmetrics_quality > 0 and openmetrics_quality >= _find_quality(accept, "text/plain")


def _find_quality(accept: str, media_type: str) -> float:
    """How much a media type is wanted, 0..1; 0 when it is not named. What cannot be read counts as left out."""
    best = 0.0
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        if name == media_type:
            quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
            best = max(best, float(quality) if _QUALITY.fullmatch(quality) else 0.0)
    return best


def _build_values(family: Family, values: Mapping[Labels, float]) -> Metric:
    match family.kind:
        case "info":
            metric = InfoMetricFamily(family.name.removesuffix("_info"), family.help)
            for labels in values:
                metric.add_metric((), dict(zip(family.labels, labels, strict=True)))
        case "counter":
            metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
            for labels, value in values.items():
                metric.add_metric(labels, value)
        case _:
            metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
            for labels, value in values.items():
                metric.add_metric(labels, value)
    return metric


def _build_histogram(family: Family, histograms: Mapping[Labels, Histogram]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [*map(floatToGoString, family.bounds), "+Inf"]
    for labels, histogram in histograms.items():
        metric.add_metric(labels, list(zip(bounds, histogram.cumulate(), strict=True)), histogram.sum)
    return metric
