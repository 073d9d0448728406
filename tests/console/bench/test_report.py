"""The table fits a terminal; the files say when, where and how."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from console.bench.fan_out import Case, Outcome, Turn
from console.bench.report import HEADER, Run, build_table, describe_machine, list_rows, save, write_markdown
from server.errors import StartupError

OUTCOMES = (
    Outcome(Case("off", 131072, 4), (Turn(9, 301, 123.4, 100.0, 1000.0), Turn(9, 301, 1.0, 50.0, 900.0)), 1023.4),
    Outcome(
        Case("on", 131072, 4), (Turn(9, 301, 0.05, 5.0, 6.0, ("in_flight_full",) * 12), Turn(fault="\x1bgone")), 6.0
    ),
)


def build_run(**changes: object) -> Run:
    told: dict[str, object] = {
        "kind": "fan-out",
        "time": "2026-11-30 12:00:00 +0000",
        "version": "1",
        "machine": describe_machine(),
        "command": "homebase-console bench fan-out --streams 4",
        "model": "nano",
        "tokens": 300,
        "floor_tps": 30.0,
        "policy": {"max_in_flight": 2, "subagents": {"max_depth": 1}},
        "outcomes": OUTCOMES,
    }
    return Run(**(told | changes))  # pyright: ignore[reportArgumentType] - the fields above, one or two of them other


def test_the_table_fits_eighty_columns_with_nothing_cut():
    out = io.StringIO()
    Console(file=out, width=80).print(build_table(OUTCOMES))
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    for cell in (*HEADER, "131,072", "4.50", "3.00", "2 min 03 s", "17 min 03 s", "12"):
        assert cell in text
    assert "…" not in text


def test_a_fan_out_with_a_turn_that_failed_is_not_called_done():
    assert [row[HEADER.index("all done")] for row in list_rows(OUTCOMES)] == ["17 min 03 s", "failed"]


def test_the_files_say_when_where_and_how(tmp_path: Path):
    run = build_run()
    paths = save(run, tmp_path / "new" / "folder")
    assert [path.suffix for path in paths] == [".json", ".md", ".svg"]
    document = json.loads(paths[0].read_text())
    assert document["outcomes"][1]["turns"][0]["refusals"] == ["in_flight_full"] * 12
    assert document["command"] == run.command
    page = paths[1].read_text()
    for part in (run.time, run.machine, run.command, paths[2].name, r"\x1bgone", "`max_in_flight` 2"):
        assert part in page
    assert "\x1b" not in page
    assert "Interrupted" not in page


def test_a_run_that_was_interrupted_says_so():
    assert "Interrupted" in write_markdown(build_run(interrupted=True), "x.svg")


def test_a_folder_that_cannot_be_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="--out"):
        save(build_run(), tmp_path / "file" / "below")
