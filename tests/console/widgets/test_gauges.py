"""Gauges know which end is bad: full slots are fine, refusing is not; memory is bad when high."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from console.widgets.gauges import gauge_lines, memory_gauge, memory_word, slots_gauge, slots_word
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
