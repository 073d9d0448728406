"""Single forwards of a bare model: more tokens, more sequences, longer contexts, and what of a step is Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from server.models.cache import ServedModel

from bare import DraftLoop, Times, fill_state, leap_state, time_decode, time_forward
from report import Goal, Section, Spread, spread

ROWS = (1, 2, 3, 4, 5)
SEQUENCES = (1, 2, 4)
WARM_STEPS = 3
"""Unmeasured steps of each kind: traces and kernels are made, and block keys caught up."""
SHOWS_AT = 0.1
"""Part of a step from which on the indexer's scan is said to show."""
TOKENS_PER_STEP = {1: 1.7, 2: 2.2, 3: 2.5, 4: 2.7}
"""About what nano's head brings; only which part of a round is rolled back depends on it."""


def measure_rows(model: ServedModel, text: Sequence[int], *, repeats: int, contexts: Sequence[int]) -> Section:
    """One to five tokens of one sequence in a forward, by turns."""
    rows: list[tuple[Spread | float | int | str | None, ...]] = []
    goals: list[Goal] = []
    for context in contexts:
        state = fill_state(model, _stretch(text, context))
        times: dict[int, list[float]] = defaultdict(list)
        for number in range(repeats + WARM_STEPS):
            tokens = _stretch(text[number % len(text) :], max(ROWS))
            for count in ROWS:
                seconds = time_forward(model, [state], tokens[:count]).total_s
                if number >= WARM_STEPS:
                    times[count].append(seconds)
        for count in ROWS:
            ratio = spread(each / one for each, one in zip(times[count], times[1], strict=True))
            rows.append((context, count, _in_ms(times[count]), ratio))
            if count == 4:
                measured = ratio.show(2)
                goals.append(
                    Goal(f"4 tokens of one sequence / 1, context {context:,}", "<= 1.5", measured, ratio.median <= 1.5)
                )
    return Section(
        title="nano, a forward of few tokens of one sequence",
        note="Bare model after a real prefill; every row verified, then taken back. Ratios are paired.",
        header=("context", "tokens", "ms", "of one token"),
        rows=tuple(rows),
        digits=2,
        goals=tuple(goals),
    )


def measure_sequences(model: ServedModel, text: Sequence[int], *, repeats: int, context: int) -> Section:
    """One, two and four sequences in a forward, one token each and four each."""
    states = [fill_state(model, _stretch(text[place:], context)) for place in range(max(SEQUENCES))]
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for number in range(repeats + WARM_STEPS):
        tokens = _stretch(text[number % len(text) :], 4)
        for count in SEQUENCES:
            for rows in (1, 4):
                seconds = time_forward(model, states[:count], tokens[:rows]).total_s
                if number >= WARM_STEPS:
                    times[count, rows].append(seconds)
    return Section(
        title="nano, a forward of several sequences",
        note=f"Bare model, contexts of {context:,} tokens; every row verified, then taken back. Ratios are paired.",
        header=("sequences", "tokens of each", "ms", "of one sequence", "of one token of one"),
        rows=tuple(
            (
                count,
                rows,
                _in_ms(list_),
                spread(each / one for each, one in zip(list_, times[1, rows], strict=True)),
                spread(each / one for each, one in zip(list_, times[1, 1], strict=True)),
            )
            for (count, rows), list_ in times.items()
        ),
        digits=2,
    )


def measure_contexts(model: ServedModel, name: str, *, repeats: int, contexts: Sequence[int]) -> Section:
    """Plain decode steps at several contexts, by turns."""
    states = {context: leap_state(model, context - repeats - WARM_STEPS - 8, seed=context) for context in contexts}
    times: dict[int, list[float]] = defaultdict(list)
    for number in range(repeats + WARM_STEPS):
        for context, state in states.items():
            seconds = time_decode(model, state, 100 + 37 * number % 2000).total_s
            if number >= WARM_STEPS:
                times[context].append(seconds)
    ratios = {context: _pair(times[context], times[4096]) for context in contexts}
    growth = ratios.get(32768)
    goals = (
        (Goal(f"{name}: decode cost 32k / 4k context", "<= 1.3", growth.show(2), growth.median <= 1.3),)
        if growth
        else ()
    )
    return Section(
        title=f"{name}, a decode step at longer contexts",
        note=(
            "Bare model; states leap to the position and are filled with noise, so that the blocks chosen lie all over "
            "the buffers. Ratios are paired."
        ),
        header=("context", "ms", "of 4,096"),
        rows=tuple((context, _in_ms(times[context]), ratios[context]) for context in contexts),
        digits=2,
        findings=(_find_linear_part({context: spread(list_).median for context, list_ in times.items()}),),
        goals=goals,
    )


def _pair(values: Sequence[float], others: Sequence[float]) -> Spread:
    return spread(value / other for value, other in zip(values, others, strict=True))


def _find_linear_part(seconds: dict[int, float]) -> str:
    """Where the scan of block keys, the one part that grows past the budget, begins to show."""
    points = {context: s for context, s in seconds.items() if context >= 4096}
    middle = sum(points) / len(points)
    mean_s = sum(points.values()) / len(points)
    slope = sum((context - middle) * (s - mean_s) for context, s in points.items())
    slope /= sum((context - middle) ** 2 for context in points)
    flat_s = mean_s - slope * middle
    if slope <= 0 or flat_s <= 0:
        return f"No growth from 4,096 to {max(points):,} tokens: the scan of block keys is lost in the noise."
    return (
        f"From 4,096 tokens on a step takes {1000 * flat_s:.2f} ms and {1e6 * slope * 1024:.1f} us for each 1,024 "
        f"tokens of context (least squares): the indexer's scan is {SHOWS_AT:.0%} of the rest at "
        f"{SHOWS_AT * flat_s / slope:,.0f} tokens, and as much as the rest at {flat_s / slope:,.0f}."
    )


def measure_dispatch(model: ServedModel, text: Sequence[int], *, repeats: int) -> Section:
    """Building graphs against evaluating them, for a plain step and for rounds of drafting."""
    start = _stretch(text, 256)
    state = fill_state(model, start)
    loops = {depth: DraftLoop(model, start, depth, tokens) for depth, tokens in TOKENS_PER_STEP.items()}
    times: dict[str, list[Times]] = defaultdict(list)
    for number in range(repeats + WARM_STEPS):
        measured = {"plain": time_decode(model, state, text[number % len(text)])}
        measured |= {f"{depth} drafts": loop.time_round() for depth, loop in loops.items()}
        if number >= WARM_STEPS:
            for kind, each in measured.items():
                times[kind].append(each)
    return Section(
        title="nano, Python and dispatch of a step",
        note=(
            "Bare model, context 256 and on. Building: the calls that make the graph, in Python and in MLX, the "
            "hashing and lookup of n-grams with them. What an engine adds is in the column `outside MLX` above."
        ),
        header=("step", "building ms", "evaluating ms", "building, of the step"),
        rows=tuple(
            (
                kind,
                _in_ms([each.build_s for each in list_]),
                _in_ms([each.eval_s for each in list_]),
                f"{spread(each.build_s / each.total_s for each in list_).median:.0%}",
            )
            for kind, list_ in times.items()
        ),
        digits=2,
    )


def _in_ms(seconds: Sequence[float]) -> Spread:
    return spread(1000 * each for each in seconds)


def _stretch(text: Sequence[int], length: int) -> tuple[int, ...]:
    """The first tokens of a text that is gone through as often as needed."""
    return tuple((list(text) * (length // len(text) + 1))[:length])
