"""Gauges know which end is bad: full slots are fine, refusing is not; memory is bad when high."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from console.format import format_bytes
from console.widgets.gauges import gauge_lines, memory_gauge, memory_parts, memory_word, slots_gauge, slots_word
from console.widgets.home_plan import plan_home
from console.widgets.lines import Line, line_width
from server.memory_plan import GIB
from server.snapshot import MemoryView

if TYPE_CHECKING:
    from tests.console.conftest import Samples


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


@pytest.mark.parametrize(
    ("used", "full", "word"),
    [(0, False, "UNKNOWN"), (64, False, "OK"), (80, False, "HIGH"), (99, False, "HIGH"), (64, True, "FULL")],
)
def test_memory_is_bad_when_high_and_full_when_requests_are_refused(
    samples: Samples, used: int, full: bool, word: str
) -> None:
    machine = 0 if used == 0 else 100
    memory = msgspec.structs.replace(
        samples.snapshot().memory,
        active_bytes=used,
        cache_bytes=0,
        peak_bytes=used,
        machine_bytes=machine,
        is_full=full,
    )
    assert memory_word(memory)[1] == word
    assert line_width(memory_gauge(memory, 60, True)) == 60


def test_what_gives_way_by_itself_makes_memory_neither_high_nor_full(samples: Samples) -> None:
    memory = msgspec.structs.replace(
        samples.snapshot().memory,
        active_bytes=60 * GIB,
        prefix_cache_bytes=40 * GIB,
        cache_bytes=4 * GIB,
        peak_bytes=64 * GIB,
        budget_bytes=64 * GIB,
    )
    assert memory_word(memory)[1] == "OK"
    line = memory_gauge(memory, 80, True)
    assert "31 %, 20.0 GiB of 64.0 GiB" in text_of(line)
    assert text_of(line).count("╍") == pytest.approx(2.2 * text_of(line).count("━"), abs=1.5)


def test_full_slots_are_no_alarm_until_someone_is_refused(samples: Samples) -> None:
    full = samples.snapshot(samples.stream(), samples.prefill_child())
    assert slots_word(full)[:2] == ("●", "FULL")
    assert slots_word(samples.parent_and_child())[:2] == ("▲", "REFUSING")
    free_again = samples.snapshot(samples.stream(), refusals=(samples.refused(),))
    assert slots_word(free_again)[:2] == ("▲", "REFUSED")
    old = samples.snapshot(samples.stream(), refusals=(samples.refused(time_s=1.0),))
    assert slots_word(old)[1] == "OK"
    assert slots_word(samples.empty())[1] == "IDLE"


def test_each_taken_slot_has_the_colour_of_its_stream(samples: Samples) -> None:
    line = slots_gauge(samples.parent_and_child(), 80, True)
    assert [role for text, role in line if text.startswith("━")] == ["state-decode", "state-prefill"]
    assert "2 of 2" in text_of(line)


def test_the_peak_is_marked_where_it_was(samples: Samples) -> None:
    line = text_of(memory_gauge(samples.snapshot().memory, 80, True))
    assert line.index("╿") > line.rindex("━")


@pytest.mark.parametrize("width", [60, 80, 99, 100, 120, 144])
def test_gauges_never_pass_their_width(samples: Samples, width: int) -> None:
    many = msgspec.structs.replace(samples.many(64).admission, max_in_flight=64)
    for snapshot in (samples.parent_and_child(), msgspec.structs.replace(samples.many(64), admission=many)):
        for rows in (2, 3):
            lines = gauge_lines(snapshot, width, rows)
            assert len(lines) == (2 if width < 100 else rows)
            assert all(line_width(line) <= width for line in lines)


def test_memory_is_measured_against_the_budget(samples: Samples) -> None:
    machine = msgspec.structs.replace(
        samples.snapshot().memory, active_bytes=60, cache_bytes=0, peak_bytes=60, machine_bytes=100, budget_bytes=0
    )
    assert memory_word(machine)[1] == "OK"
    assert "60 % of 100 B" in text_of(memory_gauge(machine, 60, False))
    budget = msgspec.structs.replace(machine, budget_bytes=64)
    assert memory_word(budget)[1] == "HIGH"
    assert "94 %, 60 B of 64 B" in text_of(memory_gauge(budget, 60, True))


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
@pytest.mark.parametrize("unit", [1024, 1024**2, 1024**3])
def test_every_part_of_memory_has_its_place_from_120_columns(
    samples: Samples, size: tuple[int, int], unit: int
) -> None:
    memory = MemoryView(
        active_bytes=900 * unit,
        cache_bytes=111 * unit,
        peak_bytes=999 * unit,
        resident_bytes=1,
        machine_bytes=2000 * unit,
        prefix_cache_bytes=400 * unit,
    )
    plan = plan_home(*size)
    snapshot = msgspec.structs.replace(samples.parent_and_child(), memory=memory)
    text = "\n".join(text_of(line) for line in gauge_lines(snapshot, plan.main_width, plan.gauge_rows))
    for name, number in (("in use", 500), ("prefixes", 400), ("freed", 111), ("peak", 999)):
        assert f"{name} {format_bytes(number * unit)}" in text


def test_what_is_promised_is_told_when_memory_is_full(samples: Samples) -> None:
    memory = msgspec.structs.replace(samples.snapshot().memory, promised_bytes=11 * GIB, is_full=True)
    assert "promised 11.0 GiB" in text_of(memory_parts(memory, 60, 1)[0])


def test_parts_are_whole_or_left_out(samples: Samples) -> None:
    memory = msgspec.structs.replace(samples.snapshot().memory, prefix_cache_bytes=2 * GIB, promised_bytes=7 * GIB)
    for width in range(30, 100):
        for rows in (1, 2):
            lines = memory_parts(memory, width, rows)
            assert len(lines) <= rows
            assert all(line_width(line) <= width for line in lines)
            assert all(text_of(line).endswith("GiB") for line in lines)
