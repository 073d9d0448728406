"""Twenty clients at one barrier, again and again: how many get in, and how soon the others are told that they do not.

    uv run python bench/barrier.py                  # 100 rounds
    uv run python bench/barrier.py --rounds 5 --dry

nano behind `max_in_flight = 4`, two streams that decode all the while, and clients of five families with the headers
that they send: two places for twenty. A refusal is timed by its client, from sending to the last byte. All clients
live in one process beside the server, so that what they take of the processor is in their times.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import tomli_w

from load import percentile
from processes import Program
from report import Cell, Goal, Section, begin_report, render_goals, render_head, render_section, write_results

PORT = 18290
CLIENTS = 20
PLACES = 4
HELD = 2
GOAL_MS = 50.0
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
"""Without any, OpenCode's would be titles, which wait."""
FAMILIES: tuple[tuple[str, dict[str, str], int], ...] = (
    ("grok", {"user-agent": "grok-shell/1.0.8 (linux; x86_64)", "x-grok-session-id": "{}"}, 429),
    ("opencode", {"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/3.0", "x-session-id": "{}"}, 400),
    ("codex", {"user-agent": "codex_exec/0.171.0", "thread-id": "{}"}, 400),
    ("qwen", {"user-agent": "QwenCode/0.15.10 (linux; x64)"}, 400),
    ("openai", {"user-agent": "OpenAI/JS 6.26.0"}, 429),
)
"""Name, headers, and the status that a refusal has for it."""


class Answer(msgspec.Struct, frozen=True):
    """What one client got."""

    family: str
    status: int
    is_as_wanted: bool
    ms: float


class Round(msgspec.Struct, frozen=True):
    """One barrier."""

    answers: tuple[Answer, ...]
    peak_in_flight: int
    """The most ever taken, told after it."""
    left_in_flight: int
    """After it, of the two that decode."""

    @property
    def holds(self) -> bool:
        """True when every invariant did."""
        admitted = sum(answer.status == 200 for answer in self.answers)
        told = all(answer.is_as_wanted for answer in self.answers)
        return told and admitted >= PLACES - HELD and self.peak_in_flight == PLACES and self.left_in_flight == HELD


async def run(base_url: str, rounds: int) -> list[Round]:
    """All rounds, beside two streams that outlast them."""
    limits = httpx.Limits(max_connections=CLIENTS + HELD + 1, max_keepalive_connections=CLIENTS + HELD + 1)
    async with httpx.AsyncClient(base_url=base_url, timeout=120, trust_env=False, limits=limits) as http:
        held = [asyncio.create_task(_hold(http, number)) for number in range(HELD)]
        await _wait_in_flight(http, HELD)
        done = [await _run_round(http, number) for number in range(rounds)]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        return done


async def _run_round(http: httpx.AsyncClient, number: int) -> Round:
    barrier = asyncio.Barrier(CLIENTS)
    answers = await asyncio.gather(*(_ask(http, barrier, f"{number}-{place}", place) for place in range(CLIENTS)))
    view = await _wait_in_flight(http, HELD)
    return Round(tuple(answers), view["peak_in_flight"], view["in_flight"])


async def _ask(http: httpx.AsyncClient, barrier: asyncio.Barrier, name: str, place: int) -> Answer:
    family, headers, status = FAMILIES[place % len(FAMILIES)]
    told = {key: value.format(name) for key, value in headers.items()}
    body = {"model": "nano", "messages": [{"role": "user", "content": f"Write {name}."}], "max_tokens": 32}
    body |= {"tools": [TOOL]}
    await barrier.wait()
    began_s = time.perf_counter()
    answer = await http.post("/chat/completions", json=body, headers=told)
    ms = 1000 * (time.perf_counter() - began_s)
    is_refused = answer.status_code == status and answer.json()["error"]["code"] == "in_flight_full"
    return Answer(family, answer.status_code, answer.status_code == 200 or is_refused, ms)


async def _hold(http: httpx.AsyncClient, number: int) -> None:
    body = {"model": "nano", "messages": [{"role": "user", "content": f"Count. {number}"}], "stream": True}
    body |= {"max_tokens": 60_000, "logit_bias": {"0": -100, "2": -100}}
    async with http.stream("POST", "/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_bytes():
            pass


async def _wait_in_flight(http: httpx.AsyncClient, wanted: int) -> dict[str, Any]:
    """What admission says once so many are in flight; after ten seconds, whatever it says."""
    until = time.monotonic() + 10
    while True:
        view = (await http.get(f"http://127.0.0.1:{PORT}/homebase/snapshot")).json()["admission"]
        if view["in_flight"] == wanted or time.monotonic() > until:
            return view
        await asyncio.sleep(0.05)


def render(report: dict[str, Any], rounds: list[Round]) -> str:
    """The tables; `report` gets the goals."""
    answers = [answer for each in rounds for answer in each.answers]
    rows: list[tuple[Cell, ...]] = []
    for name, *_ in FAMILIES:
        own = [answer for answer in answers if answer.family == name]
        refused = [answer.ms for answer in own if answer.status != 200]
        rows.append((name, Counter(answer.status for answer in own)[200], len(refused), *_describe(refused)))
    refused = [answer.ms for answer in answers if answer.status != 200]
    rows.append(("all", len(answers) - len(refused), len(refused), *_describe(refused)))
    note = (
        f"{CLIENTS} clients at once, {PLACES} places, {HELD} of them taken by streams that decode. Times of refusals."
    )
    header = ("family", "admitted", "refused", "median, ms", "p99, ms", "most, ms")
    section = Section(f"{len(rounds)} rounds", note, header, tuple(rows))
    held = sum(each.holds for each in rounds)
    p99 = percentile(refused, 0.99) or 0.0
    goals = [
        Goal("rounds in which every limit held", "all", f"{held} of {len(rounds)}", held == len(rounds)),
        Goal("a refusal at its client, p99", f"under {GOAL_MS:g} ms", f"{p99:.1f} ms", p99 < GOAL_MS),
    ]
    report["goals"], report["rounds"] = goals, rounds
    return "\n".join([*render_head("barrier.py", report), *render_section(section), *render_goals(goals)]) + "\n"


def _describe(times_ms: list[float]) -> tuple[float | None, float | None, float | None]:
    return percentile(times_ms, 0.5), percentile(times_ms, 0.99), max(times_ms, default=None)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    args = parser.parse_args()
    report = begin_report("barrier.py")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "homebase.toml"
        config.write_text(tomli_w.dumps({"policy": {"max_in_flight": PLACES}}))
        command = [str(Path(sys.executable).parent / "homebase-console"), "--config", str(config), "--model", "nano"]
        program = Program("homebase", "nano", [*command, "--port", str(PORT), "--headless"], PORT, "/ready")
        try:
            rounds = asyncio.run(run(program.base_url, args.rounds))
        finally:
            program.stop()
    table = render(report, rounds)
    print(table)
    if not args.dry:
        write_results("barrier", report, table)
    if not all(each.holds for each in rounds):
        sys.exit(1)


if __name__ == "__main__":
    main()
