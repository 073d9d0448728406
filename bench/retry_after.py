"""How well a wait for a place is foretold: each estimate against when the place really came free.

    uv run python bench/retry_after.py              # 10 minutes
    uv run python bench/retry_after.py --minutes 2 --dry

nano behind `max_in_flight = 2` and `limit_behavior = "queue"`, and clients that ask without a pause, with prompts of
200 to 2,000 tokens and `max_tokens` drawn anew: half of them far more than they use, as agents do. While a request is
in line, the wait that its row tells is written down every two seconds; it is what Retry-After is made of, before it is
rounded up to whole seconds, spread and held to a minute. Each is compared with when the row says that the wait is over.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import msgspec
import tomli_w

from load import build_prompt
from processes import Program
from report import Cell, Goal, Section, begin_report, render_goals, render_head, render_section, spread, write_results

PORT = 18280
PLACES = 2
CLIENTS = 4
LOOK_S = 0.05
NOTE_S = 2.0
"""Between two estimates of one wait that are kept."""
SHORTEST_S = 0.5
"""Of a wait that is judged: a shorter one is over before a client could have slept."""
FAR_MORE_TOKENS = 32_000
"""What half of the requests ask for at most; their answers end by themselves."""
WARM_RATIO = 0.2
"""Of the run: until then nothing is known of the lengths of answers."""
GOAL_RATIO = 0.3


class Foretold(msgspec.Struct, frozen=True):
    """One wait."""

    position: int
    expected_s: float
    real_s: float
    began_ratio: float
    """Where in the run it began."""

    @property
    def error_ratio(self) -> float:
        """Of the real wait."""
        return abs(self.expected_s - self.real_s) / self.real_s


class Answer(msgspec.Struct, frozen=True):
    """One that came to its end."""

    max_tokens: int
    completion_tokens: int
    finish_reason: str


class Watch:
    """Rows of the snapshot from when they are in line to when they are not."""

    def __init__(self, seconds: float) -> None:
        self.began_s, self.seconds = time.monotonic(), seconds
        self.waits: list[Foretold] = []
        self.answers: list[Answer] = []
        self._in_line: dict[str, list[tuple[float, int, float]]] = {}

    @property
    def is_over(self) -> bool:
        """True when the time is up."""
        return time.monotonic() > self.began_s + self.seconds

    def look(self, streams: list[dict[str, Any]]) -> None:
        """Take in what is in line now."""
        now_s = time.monotonic()
        for stream in streams:
            name, position, expected_s = stream["id"], stream["queue_position"], stream["expected_wait_s"]
            if position is not None and expected_s is not None:
                seen = self._in_line.setdefault(name, [])
                if not seen or now_s - seen[-1][0] >= NOTE_S:
                    seen.append((now_s, position, expected_s))
            elif position is None:
                for told in self._in_line.pop(name, ()):
                    self._keep(*told, now_s)

    def _keep(self, since_s: float, position: int, expected_s: float, now_s: float) -> None:
        if now_s - since_s >= SHORTEST_S:
            began_ratio = (since_s - self.began_s) / self.seconds
            self.waits.append(Foretold(position, expected_s, now_s - since_s, began_ratio))


async def run(program: Program, seconds: float) -> Watch:
    """All that was seen in a run."""
    watch, draw = Watch(seconds), random.Random(17)
    async with httpx.AsyncClient(timeout=600, trust_env=False) as http:
        clients = [asyncio.create_task(_ask_on(http, program, watch, draw)) for _ in range(CLIENTS)]
        while not watch.is_over:
            watch.look((await http.get(f"http://127.0.0.1:{PORT}/homebase/snapshot")).json()["streams"])
            await asyncio.sleep(LOOK_S)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return watch


async def _ask_on(http: httpx.AsyncClient, program: Program, watch: Watch, draw: random.Random) -> None:
    while not watch.is_over:
        prompt = build_prompt(round(200 * 10 ** draw.random()), draw.randrange(10**6))
        most = draw.choice((FAR_MORE_TOKENS, draw.randint(32, 256)))
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 1, "max_tokens": most}
        answer = await http.post(f"{program.base_url}/chat/completions", json=body)
        answer.raise_for_status()
        usage, [choice] = answer.json()["usage"], answer.json()["choices"]
        watch.answers.append(Answer(most, usage["completion_tokens"], choice["finish_reason"]))


def render(report: dict[str, Any], watch: Watch) -> str:
    """The tables; `report` gets the goals."""
    waits, answers = watch.waits, watch.answers
    warm = [wait for wait in waits if wait.began_ratio >= WARM_RATIO]
    rows: list[tuple[Cell, ...]] = []
    for name, chosen in (
        ("all", warm),
        *((f"no. {place} in line", [wait for wait in warm if wait.position == place]) for place in range(1, CLIENTS)),
        ("before anything was known", [wait for wait in waits if wait.began_ratio < WARM_RATIO]),
    ):
        if chosen:
            errors = spread(100 * wait.error_ratio for wait in chosen)
            real, told = spread(wait.real_s for wait in chosen), spread(wait.expected_s for wait in chosen)
            rows.append((name, len(chosen), told, real, errors))
    note = f"{CLIENTS} clients, {PLACES} places. Waits of {SHORTEST_S:g} s and more, after the first fifth of the run."
    section = Section("Waits", note, ("which", "waits", "told, s", "real, s", "error, %"), tuple(rows))
    own = [each.completion_tokens for each in answers if each.finish_reason == "stop"]
    ends: list[tuple[Cell, ...]] = [("by itself", len(own), spread(own))] if own else []
    if cut := [each.completion_tokens for each in answers if each.finish_reason != "stop"]:
        ends.append(("max_tokens", len(cut), spread(cut)))
    lengths = Section("Answers", "What was generated.", ("ended by", "answers", "tokens"), tuple(ends))
    found = median(wait.error_ratio for wait in warm)
    goal = Goal("median error of a wait", f"under {GOAL_RATIO:.0%}", f"{found:.0%}", found < GOAL_RATIO)
    report["goals"], report["waits"], report["answers"] = [goal], waits, answers
    parts = [*render_section(section), *render_section(lengths), *render_goals([goal])]
    return "\n".join([*render_head("retry_after.py", report), *parts]) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    args = parser.parse_args()
    report = begin_report("retry_after.py")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "homebase.toml"
        policy = {"max_in_flight": PLACES, "limit_behavior": "queue", "queue_limit": CLIENTS, "queue_wait_s": 600}
        config.write_text(tomli_w.dumps({"policy": policy}))
        command = [str(Path(sys.executable).parent / "homebase-console"), "--config", str(config), "--model", "nano"]
        program = Program("homebase", "nano", [*command, "--port", str(PORT), "--headless"], PORT, "/ready")
        try:
            watch = asyncio.run(run(program, 60 * args.minutes))
        finally:
            program.stop()
    table = render(report, watch)
    print(table)
    if not args.dry:
        write_results("retry-after", report, table)


if __name__ == "__main__":
    main()
