"""The table's cells: nothing that is said of a phase is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from rich.cells import cell_len

from console.widgets.stream_table import COLUMNS, choose_columns

if TYPE_CHECKING:
    from tests.console.conftest import Samples

PHASE = next(column for column in COLUMNS if column.name == "phase")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "● decode"),
        ({"phase": "prefill"}, "◐ prefill"),
        ({"idle_s": 3725.0}, "▲ idle 1:02:05"),
        ({"phase": "waiting", "queue_position": 12}, "○ no. 12 in line"),
        ({"phase": "finished", "outcome": "stop"}, "■ stop"),
        ({"phase": "finished", "outcome": "length"}, "■ length"),
        ({"phase": "finished", "outcome": "cancelled"}, "↯ cancelled"),
        ({"phase": "finished", "outcome": "failed"}, "✕ failed"),
    ],
)
def test_every_phase_fits_its_column(samples: Samples, fields: dict[str, Any], words: str) -> None:
    assert PHASE.read(samples.stream(**fields)) == words
    assert cell_len(words) <= PHASE.width


@pytest.mark.parametrize("width", [60, 80, 100, 144, 200])
def test_columns_keep_to_the_width(width: int) -> None:
    columns = choose_columns(width)
    assert "phase" in [column.name for column in columns]
    assert sum(column.width + 2 for column in columns) <= width
