"""What the engine does by itself: drafting, streams side by side, prompts beside decoders, and single forwards.

    uv run python bench/engine.py           # all of it, about 12 minutes on 2 cores
    uv run python bench/engine.py --quick   # the same with few repeats, about 3 minutes
    uv run python bench/engine.py --only contexts rows

Everything that is compared runs by turns in one process, so that a busy machine hits all alike; tables give the
median and quartiles. Results go to bench/results/ as JSON and as Markdown, with machine, date and command.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from server.models.blas import use_fast_blas
from server.models.cache import ServedModel
from server.models.loader import load_model

from draft_gain import measure_draft_gain
from engine_runs import EngineBench
from eval_clock import install_clock
from forwards import measure_contexts, measure_dispatch, measure_rows, measure_sequences
from real_ratios import write_real_ratios
from report import Section, begin_report, render_goals, render_head, render_section, write_results
from sharing import measure_prefill, measure_stall, measure_streams

MODEL = "nano"
CONTEXTS = (1024, 4096, 16384, 32768, 65536)


class Effort(msgspec.Struct, frozen=True):
    """How often things are repeated, and how long they are."""

    rounds: int = 10
    """Of whole decodes, each with a prompt of its own."""
    max_tokens: int = 192
    stall_rounds: int = 3
    child_tokens: int = 16384
    prefill_rounds: int = 4
    prefill_tokens: tuple[int, ...] = (256, 2048, 8192, 16384)
    repeats: int = 60
    """Of single forwards."""


QUICK = Effort(rounds=2, max_tokens=96, stall_rounds=1, prefill_rounds=1, prefill_tokens=(256, 2048, 8192), repeats=15)


class Bench:
    """What the sections share; each part is made when it is first asked for."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort

    @cached_property
    def engine(self) -> EngineBench:
        """The engine on nano."""
        return EngineBench(MODEL)

    @cached_property
    def model(self) -> ServedModel:
        """Nano by itself, on this thread."""
        return load_model(MODEL, "auto")

    @cached_property
    def text(self) -> tuple[int, ...]:
        """Tokens to run where it does not matter which."""
        return self.engine.build_prompt(4096, 1)

    @property
    def sections(self) -> Mapping[str, Callable[[], Section]]:
        """All sections by name, in their order."""
        effort, repeats = self.effort, self.effort.repeats
        decodes = {"rounds": effort.rounds, "max_tokens": effort.max_tokens}
        return {
            "greedy": lambda: measure_draft_gain(self.engine, self.model, sampled=False, **decodes),
            "sampled": lambda: measure_draft_gain(self.engine, self.model, sampled=True, **decodes),
            "streams": lambda: measure_streams(self.engine, **decodes),
            "stall": lambda: measure_stall(
                self.engine, rounds=effort.stall_rounds, child_tokens=effort.child_tokens, stalls_ms=(500, 200)
            ),
            "prefill": lambda: measure_prefill(
                self.engine, rounds=effort.prefill_rounds, lengths=effort.prefill_tokens
            ),
            "rows": lambda: measure_rows(self.model, self.text, repeats=repeats, contexts=(256, 4096)),
            "sequences": lambda: measure_sequences(self.model, self.text, repeats=repeats, context=256),
            "dispatch": lambda: measure_dispatch(self.model, self.text, repeats=repeats),
            "contexts": lambda: measure_contexts(self.model, "nano", repeats=repeats, contexts=CONTEXTS),
            "real-contexts": self._measure_real_ratios,
        }

    def stop(self) -> None:
        """End what was started."""
        if "engine" in self.__dict__:
            self.engine.stop()
            del self.engine

    def _measure_real_ratios(self) -> Section:
        with tempfile.TemporaryDirectory() as scratch:
            model = load_model(str(write_real_ratios(Path(scratch))), "float32")
            name = "random model with the real heads and budget"
            return measure_contexts(model, name, repeats=self.effort.repeats, contexts=CONTEXTS)


def main() -> None:
    """Measure, print, write the results. Ends with 1 when a section could not be measured."""
    bench = Bench(Effort())
    args = _parse_arguments(list(bench.sections))
    bench.effort = QUICK if args.quick else bench.effort
    install_clock()
    report = begin_report("engine.py")
    report |= {"fast_blas": use_fast_blas(), "sections": {}, "broken": {}}
    try:
        for name in args.only or bench.sections:
            _run_section(bench, name, report)
    finally:
        bench.stop()
    text = render(report)
    print("\n" + text.partition("\n## ")[0])
    if not args.dry:
        write_results("engine-quick" if args.quick else "engine", report, text)
    sys.exit(1 if report["broken"] else 0)


def _run_section(bench: Bench, name: str, report: dict[str, Any]) -> None:
    """Measure one section and print it. One that breaks is noted, and the others go on with a new engine."""
    began_s = time.monotonic()
    try:
        section = bench.sections[name]()
    except Exception as fault:
        traceback.print_exc()
        report["broken"][name] = f"{type(fault).__name__}: {fault}"
        bench.stop()
        return
    report["sections"][name] = section
    print("\n".join(render_section(section)), flush=True)
    print(f"\n({name}: {time.monotonic() - began_s:.0f} s)", flush=True)


def render(report: dict[str, Any]) -> str:
    """The whole report as Markdown: the goals, then every table."""
    sections: Mapping[str, Section] = report["sections"]
    lines = render_head("engine.py", report)
    lines.append("" if report["fast_blas"] else "\nMLX ran on the BLAS of its own wheel, which is far slower.")
    lines += [f"Section {name} broke: {why}" for name, why in report["broken"].items()]
    lines += render_goals(goal for section in sections.values() for goal in section.goals)
    for section in sections.values():
        lines += render_section(section)
    return "\n".join(lines) + "\n"


def _parse_arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--only", nargs="+", choices=names, metavar="SECTION", help=f"of {', '.join(names)}")
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
