"""Gauges know which end is bad: full slots are fine, refusing is not; memory is bad when high."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from console.format import format_bytes
from console.widgets.gauges import gauge_lines, memory_gauge, memory_parts, memory_word, slots_gauge, slots_word
from console.widgets.lines import Line, line_width

if TYPE_CHECKING:
    from tests.console.conftest import Samples


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


@pytest.mark.parametrize(("used", "word"), [(0, "UNKNOWN"), (64, "OK"), (80, "HIGH"), (92, "FULL"), (100, "FULL")])
def test_memory_is_bad_when_high(samples: Samples, used: int, word: str) -> None:
    machine = 0 if used == 0 else 100
    memory = msgspec.structs.replace(
        samples.snapshot().memory, active_bytes=used, cache_bytes=0, peak_bytes=used, machine_bytes=machine
    )
    assert memory_word(memory)[1] == word
    assert line_width(memory_gauge(memory, 60)) == 60


def test_full_slots_are_no_alarm_until_someone_is_refused(samples: Samples) -> None:
    full = samples.snapshot(samples.stream(), samples.prefill_child())
    assert slots_word(full)[:2] == ("●", "FULL")
    assert slots_word(samples.parent_and_child())[:2] == ("▲", "REFUSING")
    old = samples.snapshot(samples.stream(), refusals=(samples.refused(time_s=1.0),))
    assert slots_word(old)[1] == "OK"
    assert slots_word(samples.empty())[1] == "IDLE"


def test_each_taken_slot_has_the_colour_of_its_stream(samples: Samples) -> None:
    line = slots_gauge(samples.parent_and_child(), 80, True)
    assert [role for text, role in line if text.startswith("━")] == ["state-decode", "state-prefill"]
    assert "2 of 2" in text_of(line)


def test_the_peak_is_marked_where_it_was(samples: Samples) -> None:
    line = text_of(memory_gauge(samples.snapshot().memory, 80))
    assert line.index("╿") > line.rindex("━")


@pytest.mark.parametrize("width", [60, 80, 99, 100, 120, 144])
def test_gauges_never_pass_their_width(samples: Samples, width: int) -> None:
    many = msgspec.structs.replace(samples.many(64).admission, max_in_flight=64)
    for snapshot in (samples.parent_and_child(), msgspec.structs.replace(samples.many(64), admission=many)):
        lines = gauge_lines(snapshot, width)
        assert len(lines) == 2
        assert all(line_width(line) <= width for line in lines)


def test_memory_is_measured_against_the_budget(samples: Samples) -> None:
    machine = msgspec.structs.replace(
        samples.snapshot().memory, active_bytes=60, cache_bytes=0, peak_bytes=60, machine_bytes=100, budget_bytes=0
    )
    assert memory_word(machine)[1] == "OK"
    assert "60 % of 100 B" in text_of(memory_gauge(machine, 60))
    budget = msgspec.structs.replace(machine, budget_bytes=64)
    assert memory_word(budget)[1] == "FULL"
    assert "94 % of 64 B" in text_of(memory_gauge(budget, 60))


def test_what_the_prefix_cache_holds_stands_beside_the_rest_once_it_holds_something(samples: Samples) -> None:
    memory = msgspec.structs.replace(samples.snapshot().memory, prefix_cache_bytes=0)
    assert "prefixes" not in text_of(memory_parts(memory, 100))
    holding = msgspec.structs.replace(memory, prefix_cache_bytes=2 * 2**30)
    assert f"of it prefixes {format_bytes(2 * 2**30)}" in text_of(memory_parts(holding, 100))
