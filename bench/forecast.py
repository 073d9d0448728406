"""How far forecasts are from what then happens: 1 to 6 streams on several contexts, forecast first and measured after.

    uv run python bench/forecast.py --prompt-tokens 256 1024   # about 4 minutes on 2 busy cores
    uv run python bench/forecast.py --processor   # the engine alone, in seconds of the processor: for a busy machine
    uv run python bench/forecast.py --dry     # print only

On nano over HTTP, by the decode rate that clients see while all streams decode. A first round begins with a server that
has decoded nothing, so that each number of streams is new to it; in the next rounds it has seen them.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import msgspec

from load import ask_for, run_load
from processes import Program, start_homebase
from report import Goal, Section, begin_report, render_goals, render_head, render_section, spread, write_results

GOAL_RATIO = 0.20
MODEL = "nano"


class Compared(msgspec.Struct, frozen=True):
    """One forecast and what came of it."""

    round: int
    streams: int
    prompt_tokens: int
    basis: str
    forecast_tps: float
    measured_tps: float

    @property
    def error_ratio(self) -> float:
        """How far the forecast was off, of what was measured."""
        return abs(self.forecast_tps / self.measured_tps - 1)


def main() -> None:
    """Measure, print and keep."""
    args = _parse_arguments()
    report: dict[str, Any] = begin_report("forecast.py")
    compared = run_steps(args) if args.processor else run_server(args)
    report["compared"] = compared
    section = build_section(compared)
    report["goals"] = section.goals
    lines = [*render_head("forecast.py", report), *render_section(section), *render_goals(section.goals)]
    text = "\n".join(lines) + "\n"
    print(text)
    if not args.dry:
        write_results("forecast-processor" if args.processor else "forecast", report, text)


def run_server(args: argparse.Namespace) -> list[Compared]:
    """Over HTTP, by the clock on the wall."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        config = Path(scratch) / "homebase.toml"
        program = start_homebase(MODEL, args.port, config, terminal=False, max_in_flight=max(args.streams))
        stack.callback(program.stop)
        each = [compare(program, *asked, args.max_tokens) for asked in plan_runs(args)]
    return [compared for compared in each if compared is not None]


def run_steps(args: argparse.Namespace) -> list[Compared]:
    """The engine's steps by themselves, by the clock of the processor."""
    from forecast_steps import ProcessorRuns  # sets the clocks of this process

    runs, found = ProcessorRuns(MODEL), list[Compared]()
    for number, streams, tokens in plan_runs(args):
        forecast = runs.forecast(streams, tokens + args.max_tokens // 2)
        measured = runs.measure(streams, tokens, args.max_tokens, find_seed(number, streams, tokens))
        if measured is not None:
            found.append(Compared(number, streams, tokens, forecast.basis, forecast.rates_tps[0], measured))
            print(found[-1], flush=True)
    return found


def plan_runs(args: argparse.Namespace) -> list[tuple[int, int, int]]:
    """Round, streams and prompt tokens; the streams go up, so that in the first round each number of them is new."""
    return [
        (r, streams, tokens) for r in range(args.rounds) for streams in args.streams for tokens in args.prompt_tokens
    ]


def find_seed(number: int, streams: int, tokens: int) -> int:
    """No two runs have a prompt in common."""
    return 100_000 * (number + 1) + 10_000 * streams + tokens


def compare(program: Program, number: int, streams: int, tokens: int, max_tokens: int) -> Compared | None:
    """Forecast, then run; None when the streams never decoded together."""
    # Half of the answer is in the context on average.
    asked = {"streams": streams, "context_tokens": tokens + max_tokens // 2, "prompt_tokens": tokens}
    url = f"http://127.0.0.1:{program.port}/homebase/whatif"
    forecast = httpx.post(url, json=asked, timeout=30, trust_env=False).raise_for_status().json()
    load = run_load(
        program.base_url,
        program.model,
        streams=streams,
        prompt_tokens=ask_for(tokens),
        max_tokens=max_tokens,
        seed=find_seed(number, streams, tokens),
    )
    together = asyncio.run(load).together_tps
    if together is None:
        return None
    return Compared(number, streams, tokens, forecast["basis"], forecast["decode_tps"], together / streams)


def build_section(compared: list[Compared]) -> Section:
    """A row for each kind, and the goals."""
    rows = [
        (
            each.streams,
            each.prompt_tokens,
            each.round,
            each.basis,
            each.forecast_tps,
            each.measured_tps,
            100 * each.error_ratio,
        )
        for each in compared
    ]
    goals: list[Goal] = []
    for basis in ("estimate", "measured"):
        errors = [each.error_ratio for each in compared if each.basis == basis]
        if errors:
            found = spread(errors)
            told = f"{found.median:.0%} ({found.low:.0%}..{found.high:.0%}), {found.count} times"
            goals.append(Goal(f"median error, {basis}", f"under {GOAL_RATIO:.0%}", told, median(errors) < GOAL_RATIO))
    return Section(
        title="Decode rate of each stream: forecast, then measured",
        note="Before the streams are started, and while all of them decode.",
        header=("streams", "prompt tokens", "round", "basis", "forecast tok/s", "measured tok/s", "error %"),
        rows=tuple(rows),
        goals=tuple(goals),
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 3, 4, 6])
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processor", action="store_true", help="the engine alone, by the processor's clock")
    parser.add_argument("--port", type=int, default=18270)
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
