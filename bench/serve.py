"""What serving costs: homebase-console with and without its TUI, its engine alone, and mlx_lm.server, in one run.

    uv run python bench/serve.py                      # all of it, about 15 minutes on 2 cores
    uv run python bench/serve.py --rounds 2 --idle 10 # a quick look

Two models (nano, and a random llama of 4 layers x 256 with nano's tokenizer), 1, 2 and 4 streams. All programs are
started first and stay idle while another is measured; rounds are interleaved, so that a busy machine hits all alike.
Results go to bench/results/ as JSON and as a Markdown table, with the machine, the date and the command.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx

from server.models.loader import resolve_model_folder

from llama import write_llama
from load import LoadResult, run_load, summarise
from processes import Program, start_homebase, start_mlx_lm

HERE = Path(__file__).parent


def main() -> None:
    """Measure, print the table, write the results."""
    args = _parse_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        llama = write_llama(Path(scratch) / "llama-4x256", Path(resolve_model_folder("nano")))
        models = {"nano": "nano", "llama-4x256": str(llama)}
        report = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "command": "python bench/serve.py " + " ".join(sys.argv[1:]),
            "load_average": os.getloadavg(),
            "rows": [row for name, path in models.items() for row in measure_model(name, path, Path(scratch), args)],
        }
    table = render(report)
    print(table)
    if not args.dry:
        write_results(report, table)


def measure_model(name: str, path: str, scratch: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All programs on one model: a row per program and number of streams."""
    with ExitStack() as stack:
        programs = [
            start_homebase(path, args.port, scratch / "headless.toml", terminal=False),
            start_homebase(path, args.port + 1, scratch / "tui.toml", terminal=True),
        ]
        if name != "nano":  # mlx-lm has no module for this architecture
            programs.append(start_mlx_lm(path, args.port + 2))
        for program in programs:
            stack.callback(program.stop)
        loop = EngineLoop(path)
        stack.callback(loop.stop)
        rows = [{"model": name, **idle_row(program, args.idle)} for program in programs]
        for streams in args.streams:
            rows += [{"model": name, **row} for row in measure_streams(programs, loop, path, streams, args)]
        return rows


def measure_streams(
    programs: list[Program], loop: EngineLoop, path: str, streams: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Interleaved rounds of one number of streams; the first, unmeasured round warms everything."""
    results: dict[str, list[LoadResult]] = {program.name: [] for program in programs}
    alone: list[dict[str, Any]] = []
    for round_ in range(args.rounds + 1):
        seed = 1000 * streams + 10 * round_
        asked = {"streams": streams, "prompt_tokens": args.prompt_tokens, "max_tokens": args.max_tokens, "seed": seed}
        answer = loop.run(asked)
        if round_:
            alone.append(answer)
        for program in programs:
            model = path if program.name == "mlx_lm.server" else Path(path).name
            result = asyncio.run(run_load(program.base_url, model, **asked))
            if round_:
                results[program.name].append(result)
    rows = [{"program": "engine alone", "streams": streams, **summarise_loop(alone)}]
    return rows + [{"program": name, "streams": streams, **summarise(list_)} for name, list_ in results.items()]


def summarise_loop(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of what the engine's own stamps say."""
    rates = [rate for answer in answers for rate in answer["decode_tps"] if rate]
    ttfts = [ttft for answer in answers for ttft in answer["ttft_s"]]
    return {"decode_tps": round(median(rates), 1), "ttft_ms": round(1000 * median(ttfts), 1)}


def idle_row(program: Program, seconds: float) -> dict[str, Any]:
    """Share of one core that a program uses while nobody asks it anything, and its memory."""
    time.sleep(3)
    before = program.cpu_s()
    time.sleep(seconds)
    return {
        "program": program.name,
        "streams": 0,
        "idle_cpu_ratio": round((program.cpu_s() - before) / seconds, 4),
        "resident_mib": round(program.resident_bytes() / 2**20),
        "ready_s": round(program.ready_s, 2),
    }


class EngineLoop:
    """`engine_loop.py` in a process of its own."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "engine_loop.py"), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._read() != "ready":
            raise RuntimeError("the engine did not load")

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One measurement."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def describe_machine() -> str:
    """Processor, cores, system, MLX and its device."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, MLX {version('mlx')} on {mx.default_device()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def render(report: dict[str, Any]) -> str:
    """The report as Markdown: one table a model for the rates, one for what idling costs."""
    lines = [
        f"# bench/serve.py, {report['date']}",
        "",
        f"{report['machine']}. `{report['command']}`. Load average at the start: "
        + ", ".join(f"{value:.1f}" for value in report["load_average"]),
        "",
        "| model | streams | program | decode tok/s a stream | of engine alone | total tok/s | TTFT ms | gap p95 ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    busy = [row for row in report["rows"] if row["streams"]]
    for row in busy:
        alone = next(
            other["decode_tps"]
            for other in busy
            if (other["model"], other["streams"], other["program"]) == (row["model"], row["streams"], "engine alone")
        )
        share = f"{row['decode_tps'] / alone:.0%}" if row["decode_tps"] else "-"
        cells = [row["model"], row["streams"], row["program"], row["decode_tps"], share]
        cells += [row.get(key, "-") for key in ("total_tps", "ttft_ms", "gap_p95_ms")]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += ["", "| model | program | idle, share of one core | resident MiB | ready s |", "|---|---|---|---|---|"]
    for row in report["rows"]:
        if not row["streams"]:
            cells = [row["model"], row["program"], f"{row['idle_cpu_ratio']:.1%}", row["resident_mib"], row["ready_s"]]
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write_results(report: dict[str, Any], table: str) -> None:
    """Keep both forms under bench/results/, named by date."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    stem = f"{report['date'][:10]}-serve"
    (folder / f"{stem}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{stem}.md").write_text(table)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each number of streams")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--idle", type=float, default=20, help="seconds to watch each program idle")
    parser.add_argument("--port", type=int, default=18230, help="first of three ports")
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
