"""What a run of the fan-out says: a table for the terminal, and files to keep."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.table import Table

from console.bench.fan_out import Outcome, conclude
from console.bench.plot import draw_svg
from console.format import format_bytes, format_rate, format_seconds, safe_text
from server.errors import StartupError
from server.machine import read_machine_bytes

HEADER = ("context", "policy", "streams", "tok/s", "lowest", "TTFT", "worst", "all done", "refused")
EXPLAINED = (
    "tok/s: decode rate per stream, median and lowest. TTFT: from a stream's first try to its first token, with "
    "refusals and waits, median and worst. All done: until the last stream had its whole answer."
)


class Run(msgspec.Struct, frozen=True):
    """All that is told of one run."""

    kind: str
    time: str
    version: str
    machine: str
    command: str
    model: str
    tokens: int
    """That each stream may generate."""
    floor_tps: float
    policy: dict[str, Any]
    """The limits of the half that is called on."""
    outcomes: tuple[Outcome, ...]
    interrupted: bool = False


def describe_machine() -> str:
    """The machine in a line: system, processor, cores, memory, and how busy it is."""
    name = platform.processor() or platform.machine()
    memory = format_bytes(read_machine_bytes())
    return (
        f"{platform.system()} {platform.release()}, {name}, {os.cpu_count()} cores, {memory}, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def list_rows(outcomes: Iterable[Outcome]) -> list[tuple[str, ...]]:
    """A row of `HEADER` for each fan-out."""
    return [
        (
            f"{outcome.case.context_tokens:,}",
            outcome.case.mode,
            str(outcome.case.streams),
            format_rate(outcome.median_tps),
            format_rate(outcome.lowest_tps),
            format_seconds(outcome.median_ttft_s),
            format_seconds(outcome.worst_ttft_s),
            format_seconds(outcome.wall_s) if not outcome.faults else "failed",
            str(outcome.refusals),
        )
        for outcome in outcomes
    ]


def list_faults(outcomes: Iterable[Outcome]) -> list[str]:
    """A sentence for each fan-out in which a turn did not finish."""
    return [
        f"{outcome.case.streams} at {outcome.case.context_tokens:,}, policy {outcome.case.mode}: {safe_text(fault)}"
        for outcome in outcomes
        for fault in outcome.faults
    ]


def build_table(outcomes: Sequence[Outcome]) -> Table:
    """The rows for a terminal of 80 columns."""
    table = Table(box=box.SIMPLE, padding=(0, 0), collapse_padding=True, pad_edge=False)
    for name in HEADER:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    rows = list_rows(outcomes)
    for index, row in enumerate(rows):
        ends = index + 1 < len(rows) and rows[index + 1][:2] != row[:2]
        table.add_row(*row, end_section=ends)
    return table


def write_markdown(run: Run, picture: str) -> str:
    """The page of a run; `picture` is the file of its plot."""
    lines = [
        "# Fan-out",
        "",
        f"{run.time}, {run.model}, homebase-console {run.version}; {run.machine}.",
        "",
        f"    {run.command}",
        "",
        *(["Interrupted: this is what had been measured by then.", ""] if run.interrupted else []),
        f"![Decode rate per stream against streams]({picture})",
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{'---|' * len(HEADER)}",
        *(f"| {' | '.join(row)} |" for row in list_rows(run.outcomes)),
        "",
        f"{EXPLAINED} Each stream generated up to {run.tokens:,} tokens. Policy off lets everybody in; on, the limits "
        "of homebase.toml hold, and who is refused comes again after the Retry-After that it was told.",
        "",
        *(f"- {sentence}" for sentence in (*conclude(run.outcomes), *list_faults(run.outcomes))),
        "",
        "Limits of the policy: "
        + ", ".join(
            f"`{name}` {json.dumps(value)}" for name, value in run.policy.items() if not isinstance(value, dict)
        )
        + ".",
        "",
    ]
    return "\n".join(lines)


def save(run: Run, folder: Path) -> tuple[Path, ...]:
    """Write the run as JSON, Markdown and SVG into a folder, made if need be. Raises StartupError when it cannot."""
    stem = f"fan-out-{time.strftime('%Y%m%d-%H%M%S')}"
    paths = tuple(folder / f"{stem}.{ending}" for ending in ("json", "md", "svg"))
    title = f"Fan-out of {run.model}"
    texts = (
        msgspec.json.format(msgspec.json.encode(run), indent=1).decode() + "\n",
        write_markdown(run, paths[2].name),
        draw_svg(run.outcomes, run.floor_tps, title),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
    except OSError as error:
        raise StartupError(
            f"The results cannot be written into {folder}: {error.strerror}; give another --out."
        ) from None
    return paths
