"""What serving costs: homebase-console with and without its TUI, its engine alone, and other servers, in one run.

    uv run python bench/serve.py                            # without mlx-vlm, about 15 minutes on 2 cores
    uv run python bench/serve.py --mlx-vlm vlm/bin/python   # nano on mlx-vlm's server too, about 30
    uv run python bench/serve.py --quick                    # a quick look, under 5 minutes
    uv run python bench/serve.py --overhead                 # server time a token instead, see overhead.py

Two models (nano, and a random llama of 4 layers x 256 with nano's tokenizer), 1, 2 and 4 streams, and prompts alone.
On nano the peer is mlx-vlm's server with and without its MTP drafter, in an environment of its own (`peers.py`); on
the llama it is mlx-lm's. All programs are started first and stay idle while another is measured; rounds are
interleaved, so that a busy machine hits all alike. Results go to bench/results/ as JSON and as Markdown tables, with
the machine, the date and the command.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from server.models.loader import resolve_model_folder

from llama import write_llama
from load import LoadResult, ask_for, run_load, summarise
from overhead import measure_overhead
from peers import split_drafter, start_mlx_vlm, write_float32
from processes import EngineLoop, Program, start_homebase, start_mlx_lm
from report import begin_report, write_results
from serve_tables import compare_programs, compare_texts, render

PREFILL_MAX_TOKENS = 4
"""Enough that some text comes, by which the first token is seen."""

LONG_TOKENS = 4096
"""A prompt from here on needs no unmeasured round: shorter ones have gone before."""

Rounds = dict[str, list[LoadResult]]
"""Measured rounds by program; the same round of each had the same prompts."""


def main() -> None:
    """Measure, print the tables, write the results."""
    args = _parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the programs would outlive a run that is ended
    if args.overhead:
        measure_overhead(dry=args.dry)
        return
    report: dict[str, Any] = begin_report("serve.py")
    kinds = ("rows", "prefill", "peers", "texts")
    report |= {kind: list[dict[str, Any]]() for kind in kinds}
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.models:
            found = measure_model(name, Path(scratch), args)
            for kind in kinds:
                report[kind] += [{"model": name, **row} for row in found[kind]]
    table = render(report)
    print(table)
    if not args.dry:
        parts = ["serve", *(args.models if len(args.models) == 1 else ()), *(("quick",) if args.quick else ())]
        write_results("-".join(parts), report, table)


def measure_model(name: str, scratch: Path, args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """All programs on one model: rows of several kinds."""
    path = "nano" if name == "nano" else str(write_llama(scratch / name, Path(resolve_model_folder("nano"))))
    with ExitStack() as stack:
        programs = start_programs(path, scratch, args, stack)
        loop = EngineLoop(path)
        stack.callback(loop.stop)
        rows = [idle_row(program, args.idle) for program in programs]
        peers: list[dict[str, Any]] = []
        texts: list[dict[str, Any]] = []
        for streams in args.streams:
            alone, rounds = measure_streams(programs, loop, streams, args)
            rows.append({"program": "engine alone", "streams": streams, **summarise_loop(alone)})
            rows += [{"program": each, "streams": streams, **summarise(list_)} for each, list_ in rounds.items()]
            peers += [{"streams": streams, **row} for row in compare_programs(rounds, "homebase headless")]
            texts += [{"streams": streams, **row} for row in compare_texts(rounds, "homebase headless")]
        return {"rows": rows, "prefill": measure_prefill(programs, args), "peers": peers, "texts": texts}


def start_programs(path: str, scratch: Path, args: argparse.Namespace, stack: ExitStack) -> list[Program]:
    """Start everything that serves this model, to be stopped with the stack."""
    ports = iter(range(args.port, args.port + 4))
    programs: list[Program] = []

    def keep(program: Program) -> None:
        stack.callback(program.stop)
        programs.append(program)

    keep(start_homebase(path, next(ports), scratch / "headless.toml", terminal=False))
    keep(start_homebase(path, next(ports), scratch / "tui.toml", terminal=True))
    if path != "nano":
        keep(start_mlx_lm(path, next(ports)))
    elif args.mlx_vlm:  # mlx-lm has no module for this architecture
        model = write_float32(resolve_model_folder("nano"), scratch / "nano-float32")
        drafter = split_drafter(args.mlx_vlm, model, scratch / "nano-drafter")
        keep(start_mlx_vlm(args.mlx_vlm, model, None, next(ports)))
        keep(start_mlx_vlm(args.mlx_vlm, model, drafter, next(ports)))
    return programs


def measure_streams(
    programs: list[Program], loop: EngineLoop, streams: int, args: argparse.Namespace
) -> tuple[list[dict[str, Any]], Rounds]:
    """Interleaved rounds of one number of streams; the first, unmeasured round warms everything."""
    rounds: Rounds = {program.name: [] for program in programs}
    alone: list[dict[str, Any]] = []
    for number in range(args.rounds + 1):
        seed = 1000 * streams + 10 * number
        asked: dict[str, Any] = {
            "streams": streams,
            "prompt_tokens": args.prompt_tokens,
            "max_tokens": args.max_tokens,
            "seed": seed,
        }
        answer = loop.run(asked)
        if number:
            alone.append(answer)
        for program in _turn(programs, number):
            result = asyncio.run(run_load(program.base_url, program.model, **asked))
            if number:
                rounds[program.name].append(result)
    return alone, rounds


def measure_prefill(programs: list[Program], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Prompts alone, of several lengths: prompt tokens by the time to the first text."""
    rows: list[dict[str, Any]] = []
    programs = [program for program in programs if program.name != "homebase TUI"]
    for length in args.prefill_tokens:
        rates: dict[str, list[float]] = {program.name: [] for program in programs}
        counted: dict[str, int] = dict.fromkeys(rates, 0)
        for number in range(length >= LONG_TOKENS, args.prefill_rounds + 1):  # from 0: one that only warms
            asked: dict[str, Any] = {"streams": 1, "prompt_tokens": ask_for(length), "max_tokens": PREFILL_MAX_TOKENS}
            for program in _turn(programs, number):
                seed = 50_000 + length + 10 * number
                result = asyncio.run(run_load(program.base_url, program.model, seed=seed, **asked))
                for stream in result.finished if number else ():
                    counted[program.name] = stream.prompt_tokens
                    rates[program.name].append(stream.prompt_tokens / (stream.ttft_s or result.wall_s))
        rows += [
            {"program": name, "asked_tokens": length, "prompt_tokens": counted[name], "prompt_tps": list_}
            for name, list_ in rates.items()
        ]
    return rows


def _turn(programs: list[Program], by: int) -> list[Program]:
    """Each round begins with another program, so that what drifts within a round hits all alike."""
    start = by % len(programs)
    return [*programs[start:], *programs[:start]]


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


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds, one prompt of 8,192 tokens, 5 s of idling")
    parser.add_argument(
        "--overhead", action="store_true", help="server time a token at 1, 2 and 8 streams, and no more"
    )
    parser.add_argument("--models", nargs="+", choices=["nano", "llama-4x256"], default=["nano", "llama-4x256"])
    parser.add_argument("--mlx-vlm", metavar="PYTHON", help="of an environment that mlx-vlm is installed in")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each number of streams")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prefill-tokens", type=int, nargs="*", default=[256, 2048, 8192])
    parser.add_argument("--prefill-rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=20, help="seconds to watch each program idle")
    parser.add_argument("--port", type=int, default=18230, help="first of four ports")
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.prefill_rounds, args.idle = 2, 1, 5
    return args


if __name__ == "__main__":
    main()
