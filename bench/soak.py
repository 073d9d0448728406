"""Hours of unique prompts and cancels against one server: its memory must be flat after warming up.

    uv run python bench/soak.py                    # 2 hours
    uv run python bench/soak.py --minutes 3 --dry  # a short form; ends with 1 when it is not flat
    uv run python bench/soak.py --minutes 20 --prompt-tokens 12000 16000 --budget-gib 0.25

A server of its own, headless, with a memory budget that its prefix cache fills. Two clients ask without a pause; each
request has a prompt that never came before, of a length drawn anew, and two of five hang up in prefill or in decode.
In a long run one asks for more than the budget leaves now and then. Every few seconds the server's own account is
read, and what the system says of its process.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import tomli_w

from load import ask_for, build_prompt, percentile
from processes import Program
from report import Goal, Section, begin_report, render_goals, render_head, render_section, write_results

SAMPLE_S = 2.0
LEAVE_TRIES = 5
LARGE_WORDS, LARGE_EVERY, LARGE_FROM_S = 12_000, 50, 900.0
"""Every so many requests one has a prompt of 20,000 tokens, which the budget holds only beside little else. In a short
run these would come once or twice, and what they take for a while would look like growth."""
STREAM_ERROR = "error in the stream:"
REFUSED_S = 0.1
"""A client's rest after a refusal; mostly its own stream, which it has just left, still has its place."""
WARM_SHARE = 0.25
"""Of the run: the kernels of new shapes are built, the prefix cache fills, and allocators reach their size."""
GROWTH_ALLOWED = 0.03
"""Of the memory after warming up, until the end. What leaks a little at each of thousands of requests grows by more."""
SHORT_GROWTH_ALLOWED = 0.2
"""The same in a short run, which is not warm at its end: new lengths still make new traces. One context that is not let
go of is 5 MiB on average, and a run of two minutes ends two hundred."""


class Sample(msgspec.Struct, frozen=True):
    """The server at one moment; bytes."""

    at_s: float
    resident: int
    active: int
    cached: int
    prefixes: int
    promised: int
    in_flight: int


class Soak:
    """The clients, and what they and the server have seen."""

    def __init__(self, program: Program, seconds: float, prompt_tokens: tuple[int, int] | None = None) -> None:
        self._program, self._end_s = program, time.monotonic() + seconds
        self._draw = random.Random(11)
        self._number = 0
        self._prompt_tokens = prompt_tokens
        """From and to how many every prompt has; None draws short and long ones."""
        self._large_every = LARGE_EVERY if seconds >= LARGE_FROM_S and prompt_tokens is None else 0
        self.outcomes: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.budget_bytes = 0

    async def run(self) -> None:
        """Until the time is over."""
        async with httpx.AsyncClient(timeout=120, trust_env=False, base_url=self._program.base_url) as client:
            began_s = time.monotonic()
            clients = [asyncio.create_task(self._ask_on(client)) for _ in range(2)]
            while time.monotonic() < self._end_s:
                await self._sample(client, began_s)
                await asyncio.sleep(SAMPLE_S)
            await asyncio.gather(*clients)
            for _ in range(LEAVE_TRIES):  # who hung up last is noticed at the next step
                await self._sample(client, began_s)
                if not self.samples[-1].in_flight:
                    break
                await asyncio.sleep(SAMPLE_S)

    async def _ask_on(self, client: httpx.AsyncClient) -> None:
        while time.monotonic() < self._end_s:
            self._number += 1
            self.outcomes[await self._ask(client, self._number)] += 1

    async def _ask(self, client: httpx.AsyncClient, number: int) -> str:
        draw = self._draw
        body: dict[str, Any] = {
            "model": self._program.model,
            "messages": [{"role": "user", "content": build_prompt(self._draw_length(number), number)}],
            "max_tokens": draw.randint(1, 160),
            "stream": True,
        }
        leaves_after = draw.choice((None, None, None, 0, draw.randint(1, 40)))
        try:
            async with client.stream("POST", "/chat/completions", json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    await asyncio.sleep(REFUSED_S)
                    return str(response.json()["error"]["code"])
                return await self._read(response, leaves_after)
        except httpx.HTTPError as error:
            return type(error).__name__

    def _draw_length(self, number: int) -> int:
        if self._prompt_tokens is not None:
            return ask_for(self._draw.randint(*self._prompt_tokens))
        is_large = self._large_every and number % self._large_every == 0
        return LARGE_WORDS if is_large else round(2 ** self._draw.uniform(4, 11.5))

    async def _read(self, response: httpx.Response, leaves_after: int | None) -> str:
        if leaves_after == 0:
            await asyncio.sleep(self._draw.uniform(0, 0.5))
            return "left in prefill"
        count = 0
        async for line in response.aiter_lines():
            count += line.startswith("data:")
            if leaves_after is not None and count > leaves_after:
                return "left in decode"
            if line.startswith('data: {"error"'):
                return f"{STREAM_ERROR} {line[6:]}"
        return "complete"

    async def _sample(self, client: httpx.AsyncClient, began_s: float) -> None:
        snapshot = (await client.get(f"http://127.0.0.1:{self._program.port}/homebase/snapshot")).json()
        memory = snapshot["memory"]
        self.budget_bytes = memory["budget_bytes"]
        self.samples.append(
            Sample(
                time.monotonic() - began_s,
                self._program.resident_bytes(),
                memory["active_bytes"],
                memory["cache_bytes"],
                memory["prefix_cache_bytes"],
                memory["promised_bytes"],
                snapshot["admission"]["in_flight"],
            )
        )


def judge(soak: Soak, seconds: float) -> Section:
    """What was seen, by tenths of the run, and whether it stayed flat."""
    warm_s = WARM_SHARE * seconds
    warm = [sample for sample in soak.samples if sample.at_s >= warm_s]
    third = max(1, len(warm) // 3)
    first, last = warm[:third], warm[-third:]
    allowed = GROWTH_ALLOWED if seconds >= LARGE_FROM_S else SHORT_GROWTH_ALLOWED
    judged = (("resident", LOW), ("resident", MIDDLE), ("active", MIDDLE))
    goals = [_judge_growth(name, share, first, last, allowed) for name, share in judged]
    most = max(sample.active + sample.cached for sample in soak.samples)
    goals += [
        Goal(
            "active and cached never above the budget",
            f"<= {_mib(soak.budget_bytes)}",
            _mib(most),
            most <= soak.budget_bytes,
        ),
        Goal("nothing held at the end", "0", str(soak.samples[-1].in_flight), soak.samples[-1].in_flight == 0),
    ]
    foul = {
        name: count
        for name, count in soak.outcomes.items()
        if name in FAULTS or name.startswith(STREAM_ERROR) or name.endswith(("Error", "Timeout"))
    }
    goals.append(Goal("requests that failed", "none", str(sum(foul.values())), not foul))
    size = max(1, len(soak.samples) // 10)
    tenths = [soak.samples[start : start + size] for start in range(0, len(soak.samples), size)]
    return Section(
        title=f"{seconds / 60:g} minutes, {sum(soak.outcomes.values()):,} requests",
        note="MiB: the highest of each tenth; resident by the system, the others by the server's snapshot.",
        header=("from minute", "resident", "active", "cached by MLX", "prefix cache", "promised"),
        rows=tuple(_summarise(part) for part in tenths),
        digits=1,
        findings=(_tell_highest(first, last), *(f"{name}: {count:,}" for name, count in soak.outcomes.most_common())),
        goals=tuple(goals),
    )


LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
SHARES = {LOW: "with little running (the 10th of 100 moments)", MIDDLE: "median"}
"""What leaks stays, and so lifts what is held when little runs; the highest moments tell how much happens to run."""

FAULTS = ("sequence_failed", "engine_dead", "internal_error")


def _judge_growth(name: str, share: float, first: list[Sample], last: list[Sample], allowed_share: float) -> Goal:
    before, after = _read_percentile(name, share, first), _read_percentile(name, share, last)
    allowed = before * allowed_share
    return Goal(
        f"{name} memory, {SHARES[share]}, last third against first after warming up",
        f"<= +{_mib(allowed)}",
        f"{_mib(before)} to {_mib(after)}",
        after - before <= allowed,
    )


def _tell_highest(first: list[Sample], last: list[Sample]) -> str:
    before, after = (_mib(_read_percentile("resident", HIGH, part)) for part in (first, last))
    return f"resident memory at its highest (the 90th of 100 moments), the same thirds: {before} to {after}"


def _read_percentile(name: str, share: float, samples: list[Sample]) -> float:
    return percentile([float(getattr(each, name)) for each in samples], share) or 0.0


def _summarise(part: list[Sample]) -> tuple[float, ...]:
    fields = ("resident", "active", "cached", "prefixes", "promised")
    return (part[0].at_s / 60, *(max(getattr(each, name) for each in part) / 2**20 for name in fields))


def _mib(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def main() -> int:
    """Run it; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--port", type=int, default=11390)
    parser.add_argument("--budget-gib", type=float, default=0.125)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, metavar=("FROM", "TO"), help="of every prompt")
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    args = parser.parse_args()
    report = begin_report("soak.py")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "homebase.toml"
        engine = {"memory_budget_gib": args.budget_gib, "prefix_cache_gib": args.budget_gib / 4}
        history = {"path": str(config.with_name("history.sqlite3"))}
        config.write_text(tomli_w.dumps({"engine": engine, "history": history}))
        command = [str(Path(sys.executable).parent / "homebase-console"), "--config", str(config), "--headless"]
        program = Program("homebase", "nano", [*command, "--port", str(args.port)], args.port, "/ready")
        try:
            soak = Soak(program, 60 * args.minutes, args.prompt_tokens and tuple(args.prompt_tokens))
            asyncio.run(soak.run())
        finally:
            program.stop()
    section = judge(soak, 60 * args.minutes)
    lines = [*render_head("soak.py", report), *render_goals(section.goals), *render_section(section)]
    print("\n".join(lines))
    if not args.dry:
        write_results(
            "soak-long-prompts" if args.prompt_tokens else "soak",
            {**report, "section": section, "samples": soak.samples[:: max(1, len(soak.samples) // 500)]},
            "\n".join(lines) + "\n",
        )
    return 0 if all(goal.met for goal in section.goals) else 1


if __name__ == "__main__":
    sys.exit(main())
