"""Thousands of drawn requests against one server on nano: no fault, no hang, nothing held, and the same text after.

    uv run python bench/fuzz.py                    # 20,000 requests
    uv run python bench/fuzz.py --cases 400 --dry  # a short form; ends with 1 when a goal is missed

A server of its own, headless. Six clients draw requests with Hypothesis, and with schemathesis from the server's own
/openapi.json, and judge each answer by that document. `--seed` draws others; the same seed draws the same ones.
"""

from __future__ import annotations

import argparse
import math
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import tomli_w
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from fuzz_bodies import CHAT, USER
from fuzz_cases import Case, build_kinds
from fuzz_client import DEADLINE_S, Answer, FuzzClient, NoAnswer
from fuzz_judge import Judge, read_code
from load import percentile
from processes import Program
from report import Goal, Section, begin_report, render_goals, render_head, render_section, write_results

CLIENTS = 6
ROUND_CASES = 1000
"""All kinds take turns in rounds of so many, so that a run that is cut short has had its share of each."""
DRAWN_AHEAD = 50
FAULTS_SHOWN = 40
QUIET_DEADLINE_S = 60.0
PROGRESS_EVERY = 1000


class Fuzz:
    """The clients, and what they have seen."""

    def __init__(self, program: Program, cases: int, seed: int, seconds: float) -> None:
        self._program, self._cases, self._seed = program, cases, seed
        self._end_s = time.monotonic() + seconds
        self._root = f"http://127.0.0.1:{program.port}"
        self._document = httpx.get(f"{self._root}/openapi.json", timeout=30, trust_env=False).json()
        self._judge = Judge(self._document)
        self._lock = threading.Lock()
        self._drawn: queue.Queue[Case | None] = queue.Queue(DRAWN_AHEAD)
        self.outcomes: dict[str, Counter[str]] = {}
        self.codes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.took_s: list[float] = []
        self.texts: list[str] = []
        self.held = 0

    def run(self) -> None:
        """All cases, and the same good request before and after."""
        self.texts.append(self._ask_well())
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        self._draw_all()
        for _ in threads:
            self._drawn.put(None)
        for thread in threads:
            thread.join()
        self.held = self._wait_quiet()
        self.texts.append(self._ask_well())

    def _work(self) -> None:
        client = FuzzClient(self._program.port)
        while (case := self._drawn.get()) is not None:
            self._play(client, case)
        client.close()

    def _draw_all(self) -> None:
        """On this thread alone: Hypothesis moves the interpreter's recursion limit, which others would run into."""
        kinds = build_kinds(self._document)
        rounds = math.ceil(self._cases / ROUND_CASES)
        for index in range(rounds):
            for share, strategy in kinds:
                if time.monotonic() < self._end_s:
                    self._draw(strategy, math.ceil(self._cases * share / rounds), hash((self._seed, index)))

    def _draw(self, strategy: st.SearchStrategy[Case], count: int, seed: int) -> None:
        settings = hypothesis.settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        )

        @hypothesis.seed(seed)
        @settings
        @hypothesis.given(strategy)
        def draw(case: Case) -> None:
            self._drawn.put(case)

        draw()

    def _play(self, client: FuzzClient, case: Case) -> None:
        try:
            answer = client.ask(case)
        except NoAnswer as fault:
            self._note(case, "none", None, str(fault))
            return
        outcome = str(answer.status) if answer.is_whole else "left"
        self._note(case, outcome, answer, self._judge.find_fault(case, answer))

    def _note(self, case: Case, outcome: str, answer: Answer | None, fault: str | None) -> None:
        with self._lock:
            self.outcomes.setdefault(case.kind, Counter())[outcome] += 1
            if answer is not None:
                self.took_s.append(answer.seconds)
                if code := read_code(answer):
                    self.codes[code] += 1
            if fault is not None:
                self.faults.append(_describe(case, answer, fault))
                print(self.faults[-1], file=sys.stderr, flush=True)
            if self.total % PROGRESS_EVERY == 0:
                print(f"{self.total:,} requests", file=sys.stderr, flush=True)

    @property
    def total(self) -> int:
        """Requests that were sent."""
        return sum(each.total() for each in self.outcomes.values())

    def _ask_well(self) -> str:
        body = {"messages": [USER], "max_tokens": 60, "temperature": 0}
        answer = httpx.post(f"{self._root}{CHAT}", json=body, timeout=120, trust_env=False)
        return str(answer.json()["choices"][0]["message"]["content"]) if answer.status_code == 200 else answer.text

    def _wait_quiet(self) -> int:
        """How many are in flight when nobody asks any more."""
        until_s = time.monotonic() + QUIET_DEADLINE_S
        while True:
            snapshot = httpx.get(f"{self._root}/homebase/snapshot", timeout=30, trust_env=False).json()
            in_flight = int(snapshot["admission"]["in_flight"])
            if in_flight == 0 or time.monotonic() > until_s:
                return in_flight
            time.sleep(0.2)


def judge(fuzz: Fuzz, cases: int, log: str) -> Section:
    """What was seen, and whether it is what was promised."""
    statuses = sorted({outcome for counts in fuzz.outcomes.values() for outcome in counts})
    broken = sum("Traceback" in line or " ERROR " in line for line in log.splitlines())
    slowest = max(fuzz.took_s)
    goals = (
        Goal("requests sent", f">= {cases:,}", f"{fuzz.total:,}", fuzz.total >= cases),
        Goal("answers that are not as documented, or 5xx, or none", "0", str(len(fuzz.faults)), not fuzz.faults),
        Goal("slowest answer", f"<= {DEADLINE_S:g} s", f"{slowest:.1f} s", slowest <= DEADLINE_S),
        Goal("errors and tracebacks in the log", "0", str(broken), not broken),
        Goal("in flight at the end", "0", str(fuzz.held), fuzz.held == 0),
        Goal(
            "the greedy text of a good request, after and before",
            "the same",
            "the same" if len(set(fuzz.texts)) == 1 else "another",
            len(set(fuzz.texts)) == 1,
        ),
    )
    rows = [(kind, *(counts[each] for each in statuses), counts.total()) for kind, counts in fuzz.outcomes.items()]
    sums = [sum(counts[each] for counts in fuzz.outcomes.values()) for each in statuses]
    median, p99 = (1000 * (percentile(fuzz.took_s, share) or 0) for share in (0.5, 0.99))
    return Section(
        title=f"{fuzz.total:,} requests by kind and status",
        note="left: the client hung up before the end of an answer that could be long, as it meant to.",
        header=("kind", *statuses, "all"),
        rows=(*rows, ("all", *sums, fuzz.total)),
        digits=0,
        findings=(
            f"from the first byte sent to the last one read: median {median:.0f} ms, 99 of 100 within {p99:.0f} ms",
            *(f"{code}: {count:,}" for code, count in fuzz.codes.most_common()),
            *fuzz.faults[:FAULTS_SHOWN],
        ),
        goals=goals,
    )


def _describe(case: Case, answer: Answer | None, fault: str) -> str:
    sent = f"{case.kind}: {case.method} {case.target[:100]} {ascii(case.headers)[:200]} {ascii(case.body)[:1500]}"
    got = "" if answer is None else f"; answered {answer.status} {answer.body[:500]!a}"
    return f"{fault}: {sent}{got}"


def main() -> int:
    """Run it; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="draw nothing more after these")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--port", type=int, default=11391)
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    args = parser.parse_args()
    report = begin_report("fuzz.py")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "homebase.toml"
        history = {"path": str(config.with_name("history.sqlite3"))}
        config.write_text(tomli_w.dumps({"policy": {"max_in_flight": CLIENTS}, "history": history}))
        command = [str(Path(sys.executable).parent / "homebase-console"), "--config", str(config), "--headless"]
        program = Program("homebase", "nano", [*command, "--port", str(args.port)], args.port, "/ready")
        try:
            began_s = time.monotonic()
            fuzz = Fuzz(program, args.cases, args.seed, 60 * args.minutes)
            fuzz.run()
            took_s = time.monotonic() - began_s
        finally:
            program.stop()
        section = judge(fuzz, args.cases, program.read_log())
    lines = [*render_head("fuzz.py", report), "", f"Took {took_s:.0f} s.", *render_goals(section.goals)]
    lines += render_section(section)
    print("\n".join(lines))
    if not args.dry:
        results: dict[str, Any] = {**report, "section": section, "took_s": took_s}
        write_results("fuzz", results, "\n".join(lines) + "\n")
    return 0 if all(goal.met for goal in section.goals) else 1


if __name__ == "__main__":
    sys.exit(main())
