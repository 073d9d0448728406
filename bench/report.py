"""What measured runs have in common: medians with spread, tables, goals, and the files under results/."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
import msgspec

RESULTS = Path(__file__).parent / "results"


class Spread(msgspec.Struct, frozen=True):
    """Repeated measurements of one thing."""

    median: float
    low: float
    high: float
    """Quartiles."""
    count: int

    def show(self, digits: int) -> str:
        """As a table shows it: the median, and the quartiles in brackets."""
        if self.count == 1:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}..{self.high:.{digits}f})"


Cell = Spread | float | int | str | None


class Goal(msgspec.Struct, frozen=True):
    """One thing that a run is meant to show."""

    measure: str
    goal: str
    measured: str
    met: bool


class Section(msgspec.Struct, frozen=True):
    """One table of a report."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    digits: int = 1
    """Of numbers that are not whole."""
    findings: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()


def spread(values: Iterable[float]) -> Spread:
    """Median and quartiles of at least one value."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(median(ordered), ordered[round(last / 4)], ordered[round(3 * last / 4)], len(ordered))


def begin_report(script: str) -> dict[str, Any]:
    """When, where and by which command: taken before anything runs."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "command": " ".join(["python", f"bench/{script}", *_hide_paths(sys.argv[1:])]),
        "load_average": os.getloadavg(),
    }


def _hide_paths(arguments: Iterable[str]) -> list[str]:
    """Arguments without where things lie on the machine that ran them."""
    return [Path(argument).name if os.path.isabs(argument) else argument for argument in arguments]


def describe_machine() -> str:
    """Processor, cores, system, MLX and its device."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    bound = "" if usable == os.cpu_count() else f" (bound to {usable})"
    return (
        f"{_processor()}, {os.cpu_count()} cores{bound}, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, MLX {version('mlx')} on {mx.default_device()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def render_head(script: str, report: dict[str, Any]) -> list[str]:
    """The lines that each report begins with."""
    loads = ", ".join(f"{value:.1f}" for value in report["load_average"])
    return [
        f"# bench/{script}, {report['date']}",
        "",
        f"{report['machine']}. `{report['command']}`. Load average at the start: {loads}",
    ]


def render_table(header: Sequence[str], rows: Iterable[Sequence[Cell]], digits: int = 1) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(_show(cell, digits) for cell in row) + " |" for row in rows]


def _show(cell: Cell, digits: int) -> str:
    match cell:
        case None:
            return "-"
        case Spread():
            return cell.show(digits)
        case float():
            return f"{cell:.{digits}f}"
        case _:
            return str(cell)


def render_section(section: Section) -> list[str]:
    """A section as Markdown."""
    lines = [
        "",
        f"## {section.title}",
        "",
        section.note,
        "",
        *render_table(section.header, section.rows, section.digits),
    ]
    return lines + ([""] if section.findings else []) + [f"- {finding}" for finding in section.findings]


def render_goals(goals: Iterable[Goal]) -> list[str]:
    """The goals and what was measured, as Markdown."""
    rows = [(goal.measure, goal.goal, goal.measured, "yes" if goal.met else "NO") for goal in goals]
    return ["", *render_table(("measure", "goal", "measured", "met"), rows)] if rows else []


def write_results(kind: str, report: dict[str, Any], text: str) -> None:
    """Keep both forms under bench/results/, named by date."""
    RESULTS.mkdir(exist_ok=True)
    stem = f"{report['date'][:10]}-{kind}"
    (RESULTS / f"{stem}.json").write_text(json.dumps(msgspec.to_builtins(report), indent=1) + "\n")
    (RESULTS / f"{stem}.md").write_text(text)
