"""The table of metrics: names that Prometheus takes, and labels that no client can fill."""

from __future__ import annotations

import re

import pytest

from server.metrics.families import FAMILIES, Family

UNITS = ("_seconds", "_bytes", "_ratio", "_tokens", "_per_second", "_info", "_total", "_perc")
PLAIN = {
    "homebase_upstream_requests_in_flight",
    "homebase_upstream_up",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "homebase_requests_in_flight",
    "homebase_requests_in_flight_limit",
    "homebase_requests_in_flight_peak",
    "homebase_state",
}
"""Counts of things that are there now, and a state: they have no unit."""
BOUNDED = {
    *("model_name", "finished_reason", "position", "code", "phase", "work", "state"),
    *("version", "architecture", "dtype", "quantization", "device"),
    "upstream",  # the operator's own names, 32 at most
}


def test_no_name_is_there_twice() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names)) > 40


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_is_named_and_told_as_the_others(family: Family) -> None:
    assert re.fullmatch(r"(vllm:|homebase_)[a-z0-9_]+", family.name)
    assert family.name.endswith(UNITS) or family.name in PLAIN
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert (family.kind == "info") == family.name.endswith("_info")
    assert (family.kind == "histogram") == bool(family.bounds)
    assert list(family.bounds) == sorted(set(family.bounds))
    assert family.help[0].isupper() or family.help[0].isdigit()
    assert family.help.endswith(".")
    assert set(family.labels) <= BOUNDED
