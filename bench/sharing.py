"""Streams side by side in one engine: two that decode, a parent beside a child's prompt, and prompts alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from draft_gain import encode_ask
from engine_runs import EngineBench, Trace, build_policy
from load import percentile
from report import Goal, Section, Spread, spread

STREAMS = (1, 2, 4)
PARENT_TOKENS = 20_000
"""More than a parent gets to, whatever the machine; it is cancelled when the child is done."""
ALONE_EVENTS = 150
"""Of the parent's, before the child comes."""


def measure_streams(engine: EngineBench, *, rounds: int, max_tokens: int) -> Section:
    """One, two and four streams by turns, drafting and not; the first round, unmeasured, lets the engine learn."""
    totals: dict[tuple[str, int], list[float]] = defaultdict(list)
    equal, compared = 0, 0
    for number in range(rounds + 1):
        alone: dict[int, list[int]] = {}
        for setting in ("auto", "off"):
            engine.policy = build_policy(mtp=setting)
            for streams in STREAMS:
                prompts = [encode_ask(engine, number + place) for place in range(streams)]
                traces = [engine.submit(prompt, max_tokens) for prompt in prompts]
                engine.run(*traces)
                if number:
                    totals[setting, streams].append(_total_tps(traces))
                for place, trace in enumerate(traces):
                    if place in alone:
                        equal, compared = equal + (alone[place] == trace.token_ids), compared + 1
                    alone.setdefault(place, trace.token_ids)
    gains = {key: _pair(totals[key], totals[key[0], 1]) for key in totals}
    rows = [
        (streams, setting, spread(totals[setting, streams]), gains[setting, streams])
        for streams in STREAMS
        for setting in ("auto", "off")
    ]
    two = gains["auto", 2]
    return Section(
        title="nano, streams side by side",
        note=(
            "Greedy. Tokens per second of all streams together while all of them decode; paired by round with one "
            f"stream of the same setting. Of {compared} texts that had run before, alone or beside fewer, or with the "
            f"other setting, {equal} came out the same."
        ),
        header=("streams", "mtp", "tok/s of all", "of one stream"),
        rows=tuple(rows),
        digits=2,
        goals=(
            Goal("2 streams both MTP, aggregate / 1 stream", ">= 1.5x", two.show(2), two.median >= 1.5),
            Goal("texts beside siblings as before", "all", f"{equal} of {compared}", equal == compared),
        ),
    )


def _pair(values: Sequence[float], single: Sequence[float]) -> Spread:
    return spread(value / one for value, one in zip(values, single, strict=True))


def _total_tps(traces: Sequence[Trace]) -> float:
    """Tokens of all per second, from when the last has begun to when the first has ended."""
    start = max(trace.emitted[0].at_s for trace in traces)
    end = min(trace.emitted[-1].at_s for trace in traces)
    events = [event for trace in traces for event in trace.emitted if start < event.at_s <= end]
    return sum(len(event.token_ids) for event in events) / (end - start)


def measure_stall(engine: EngineBench, *, rounds: int, child_tokens: int, stalls_ms: Sequence[int]) -> Section:
    """A parent decodes while a child's prompt is read, under each `decode_stall_ms`; the prompt alone in between."""
    solo_s: list[float] = []
    alone_s: list[float] = []
    beside_s: dict[int, list[float]] = defaultdict(list)
    gaps_s: dict[int, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        child = engine.build_prompt(child_tokens if number else child_tokens // 4, 500 + number)
        for stall_ms in (None, *stalls_ms):
            engine.policy = build_policy(decode_stall_ms=stall_ms or stalls_ms[0])
            if stall_ms is None:
                trace = engine.submit(child, 1)
                engine.run(trace)
                if number:
                    solo_s.append(trace.prefill_s)
                continue
            before, during, seconds = _run_beside(engine, encode_ask(engine, number), child)
            if number:
                alone_s += before
                gaps_s[stall_ms] += during
                beside_s[stall_ms].append(seconds)
    rates = {
        ms: spread(solo / each for solo, each in zip(solo_s, list_, strict=True)) for ms, list_ in beside_s.items()
    }
    rows: list[tuple[Spread | float | int | str | None, ...]] = [
        ("the parent alone", *_describe_gaps(alone_s), None, None),
        ("the child alone", None, None, None, spread(child_tokens / each for each in solo_s), None),
    ]
    rows += [
        (f"together, {ms} ms", *_describe_gaps(gaps_s[ms]), spread(child_tokens / s for s in beside_s[ms]), rates[ms])
        for ms in stalls_ms
    ]
    return Section(
        title=f"nano, a parent's gaps while a child's prompt of {child_tokens:,} tokens is read",
        note=(
            "mtp auto, `decode_stall_ms` as named. Gaps between the events that bring the parent tokens, milliseconds; "
            "rates of the child in prompt tokens per second, from its submission to its last chunk."
        ),
        header=("", "gap p50", "gap p95", "gap max", "child tok/s", "of the child alone"),
        rows=tuple(rows),
        digits=2,
        goals=tuple(goal for ms in stalls_ms for goal in _judge_stall(ms, gaps_s[ms], rates[ms])),
    )


def _run_beside(
    engine: EngineBench, parent_prompt: tuple[int, ...], child_prompt: tuple[int, ...]
) -> tuple[list[float], list[float], float]:
    """The parent's gaps alone and while the child's prompt was read, and how long that took."""
    parent = engine.submit(parent_prompt, PARENT_TOKENS)
    engine.collect(lambda: len(parent.emitted) >= ALONE_EVENTS)
    child = engine.submit(child_prompt, 1)
    engine.run(child)
    last = len(parent.emitted)
    engine.collect(lambda: len(parent.emitted) > last)
    engine.cancel(parent)
    began_s, ended_s = child.submitted_s, child.chunk_ends_s[-1]
    return parent.gaps_s(parent.emitted[0].at_s, began_s), parent.gaps_s(began_s, ended_s), child.prefill_s


def _describe_gaps(gaps_s: Sequence[float]) -> tuple[float | None, ...]:
    shares = (percentile(list(gaps_s), share) for share in (0.5, 0.95, 1.0))
    return tuple(None if gap is None else 1000 * gap for gap in shares)


def _judge_stall(stall_ms: int, gaps_s: Sequence[float], rate: Spread) -> tuple[Goal, ...]:
    p95_ms = 1000 * (percentile(list(gaps_s), 0.95) or 0.0)
    name = f"decode_stall_ms {stall_ms}"
    return (
        Goal(
            f"{name}: parent's gap p95 beside a child's prefill",
            f"<= {stall_ms} ms",
            f"{p95_ms:.0f} ms",
            p95_ms <= stall_ms,
        ),
        Goal(f"{name}: child's prefill rate / alone", ">= 85 %", rate.show(2), rate.median >= 0.85),
    )


def measure_prefill(engine: EngineBench, *, rounds: int, lengths: Sequence[int]) -> Section:
    """Prompts of several lengths alone, with and without the head that reads along."""
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for length in lengths if number else lengths[:2]:
            prompt = engine.build_prompt(length, 700 + number)
            for setting in ("auto", "off") if number % 2 else ("off", "auto"):
                engine.policy = build_policy(mtp=setting)
                trace = engine.submit(prompt, 1)
                engine.run(trace)
                if number:
                    seconds[setting, length].append(trace.emitted[0].at_s - trace.submitted_s)
    rows = [
        (length, *(spread(length / each for each in seconds[setting, length]) for setting in ("auto", "off")))
        for length in lengths
    ]
    return Section(
        title="nano, prompts alone",
        note="Prompt tokens per second, from submission to the first token.",
        header=("prompt tokens", "tok/s, mtp auto", "tok/s, mtp off"),
        rows=tuple(rows),
        digits=0,
    )
