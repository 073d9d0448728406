"""What the prefix cache saves: a second turn against its first, at once and after a restart, and ten sessions' head.

    uv run python bench/prefix.py           # about 5 minutes on 2 cores
    uv run python bench/prefix.py --dry     # print only

Through the engine's steps, on nano, with prompts of random tokens. A second turn has the first one's prompt, its reply
and something new; it is run with the cache as it stands, from files alone as after a restart, and cold. All must say
the same text.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from server.engine.prefix import store
from server.engine.request import EngineRequest, Sampling
from server.engine.step import StepRunner
from server.events import EngineEvent, PrefillAdvanced, PrefixCacheSampled, PromptLookedUp, TokensEmitted
from server.models.cache import ServedModel
from server.models.loader import load_model
from server.policy import EnginePolicy

from report import Cell, Goal, Section, begin_report, render_goals, render_head, render_section, spread, write_results

REPLY_TOKENS = 48
OPENING_TOKENS = 8
"""What opens the assistant's turn, and is written differently in the next prompt."""
NEW_TOKENS = 40
"""The next question."""
TAIL_TOKENS = 100
"""Of each session, after the head that all share."""
SESSIONS = 10
COLD = EnginePolicy(prefix_cache_gib=0)
WARM = EnginePolicy(prefix_cache_gib=4)
STORED = EnginePolicy(prefix_cache_gib=4, prefix_cache_disk_gib=4)


class Asker:
    """One engine's steps, run by hand."""

    def __init__(self, model: ServedModel, policy: EnginePolicy) -> None:
        self._runner, self._policy = StepRunner(model), policy
        self._asked = 0
        self.events: list[EngineEvent] = []
        """Of the newest request."""

    def ask(self, prompt: Sequence[int], boundaries: tuple[int, ...]) -> float:
        """Seconds to the first token."""
        self._asked, self.events = self._asked + 1, []
        sampling, name = Sampling(temperature=0), f"r{self._asked}"
        began_s, first_s = time.perf_counter(), 0.0
        self._runner.add(EngineRequest(name, tuple(prompt), REPLY_TOKENS, sampling, frozenset(), boundaries=boundaries))
        while not self._runner.idle:
            self.events += self._runner.run_step(self._policy)
            if not first_s and self.reply:
                first_s = time.perf_counter() - began_s
        return first_s

    @property
    def reply(self) -> list[int]:
        """Its tokens."""
        return [token for event in self.events if isinstance(event, TokensEmitted) for token in event.token_ids]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed again."""
        return sum(event.cached_tokens for event in self.events if isinstance(event, PromptLookedUp))

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were."""
        return sum(event.chunk_tokens for event in self.events if isinstance(event, PrefillAdvanced))

    def measure_cache(self) -> int:
        """Bytes of the cache, after the newest request."""
        self._runner.run_step(self._policy)
        told = [event.memory_bytes for event in self.events if isinstance(event, PrefixCacheSampled)]
        return told[-1] if told else 0

    def close(self) -> None:
        """Wait for its files."""
        self._runner.close(60)


def measure_turns(model: ServedModel, tokens: int, rounds: int, folder: Path) -> Section:
    """First and second turns, by turns in each round."""
    seconds: dict[str, list[float]] = {}
    cached: dict[str, int] = {}
    prompts: dict[str, int] = {}
    bounds = (0, tokens // 2, tokens - OPENING_TOKENS)
    same = 0
    Asker(model, COLD).ask(_draw(model, 0, tokens), ())  # kernels
    for number in range(rounds):
        store.find_root = lambda place=folder / str(number): place
        text = _draw(model, number + 1, tokens + NEW_TOKENS)
        first, asker = text[:tokens], Asker(model, STORED)

        def note(name: str, asker: Asker, prompt: Sequence[int], bounds: tuple[int, ...]) -> list[int]:
            seconds.setdefault(name, []).append(asker.ask(prompt, bounds))
            cached[name], prompts[name] = asker.cached_tokens, len(prompt)
            return asker.reply

        reply = note("first turn", asker, first, bounds)
        asker.close()  # the files hold the first turn; what follows is in memory alone
        second = (*first[: tokens - OPENING_TOKENS], *reply, *text[tokens:])
        turned = (*bounds, len(second) - OPENING_TOKENS)
        said = [note("second turn", asker, second, turned)]
        again = Asker(model, STORED)
        said.append(note("second turn, from disk", again, second, turned))
        again.close()
        said.append(note("second turn, cold", Asker(model, COLD), second, ()))
        same += said[0] == said[1] == said[2]
    ratios = {
        name: spread(each / first for each, first in zip(times, seconds["first turn"], strict=True))
        for name, times in seconds.items()
    }
    rows: list[tuple[Cell, ...]] = [
        (name, spread(times), ratios[name], prompts[name], cached[name], f"{cached[name] / prompts[name]:.1%}")
        for name, times in seconds.items()
    ]
    reused = cached["second turn"] / (tokens - OPENING_TOKENS + REPLY_TOKENS)
    turn, stored = ratios["second turn"], ratios["second turn, from disk"]
    return Section(
        title=f"nano, a second turn after {tokens:,} tokens",
        note="Seconds to the first token, and paired by round with the first turn's.",
        header=("", "TTFT s", "of the first turn", "prompt tokens", "cached", "of the prompt"),
        rows=tuple(rows),
        digits=3,
        goals=(
            Goal("second turn's TTFT / first", "<= 0.1", turn.show(3), turn.median <= 0.1),
            Goal("tokens of prompt and reply that were reused", ">= 95 %", f"{reused:.1%}", reused >= 0.95),
            Goal("the same after a restart, from disk", "<= 0.3", stored.show(3), stored.median <= 0.3),
            Goal("text after a hit, from disk, and cold", "the same", f"{same} of {rounds}", same == rounds),
        ),
    )


def measure_sessions(model: ServedModel, tokens: int) -> Section:
    """Sessions that have a long head in common, one after the other."""
    asker, head = Asker(model, WARM), _draw(model, 50, tokens)
    rows: list[tuple[Cell, ...]] = []
    computed: list[int] = []
    before = 0
    for number in range(SESSIONS):
        seconds = asker.ask((*head, *_draw(model, 60 + number, TAIL_TOKENS)), (0, tokens))
        held = asker.measure_cache()
        computed.append(asker.computed_tokens)
        rows.append((number + 1, seconds, asker.cached_tokens, computed[-1], (held - before) / 2**20))
        before = held
    once = computed[0] == tokens + TAIL_TOKENS and all(count <= TAIL_TOKENS for count in computed[1:])
    tails = [float(row[4]) for row in rows[1:] if isinstance(row[4], float)]
    first = rows[0][4]
    assert isinstance(first, float)
    return Section(
        title=f"nano, {SESSIONS} sessions with a head of {tokens:,} tokens in common, {TAIL_TOKENS} of their own",
        note="What each one computes, and what the cache grows by: MiB.",
        header=("session", "TTFT s", "cached tokens", "computed tokens", "cache grows by"),
        rows=tuple(rows),
        digits=2,
        goals=(
            Goal("the head is computed", "once", "once" if once else "more often", once),
            Goal(
                "memory grows by the tails only, MiB",
                f"<= {first / 10:.1f}",
                f"{max(tails):.2f} at most",
                max(tails) <= first / 10,
            ),
        ),
    )


def _draw(model: ServedModel, seed: int, count: int) -> tuple[int, ...]:
    dice = np.random.default_rng(seed)
    return tuple(int(token) for token in dice.integers(20, model.facts.vocab_size, count))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print only, write no results")
    args = parser.parse_args()
    report = begin_report("prefix.py")
    model = load_model("nano", "auto")
    with tempfile.TemporaryDirectory() as folder:
        sections = (
            measure_turns(model, args.tokens, args.rounds, Path(folder)),
            measure_sessions(model, args.tokens),
        )
    goals = [goal for section in sections for goal in section.goals]
    lines = [*render_head("prefix.py", report), *render_goals(goals)]
    lines += [line for section in sections for line in render_section(section)]
    print("\n".join(lines))
    if not args.dry:
        write_results("prefix", {**report, "sections": sections}, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
