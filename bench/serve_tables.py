"""What `serve.py` measured, compared between programs and written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import median
from typing import Any

from load import LoadResult
from report import Cell, Goal, Spread, render_goals, render_head, render_table, spread

GOALS_DECODE = {1: 1.3, 2: 1.6, 4: 1.6}
"""Decode tokens per second against mlx-vlm, by number of streams."""
GOAL_PREFILL = 3.0
RIVALS = ("mlx_vlm + MTP", "mlx_vlm")
"""With MTP is what the goal is about; without, what is left to compare with where that one fails."""
OURS = "homebase headless"
BROKEN_CHARACTERS = (
    "A random llama often emits bytes that are no character, which servers write in different ways: the same tokens "
    "then differ as text."
)


def compare_programs(rounds: Mapping[str, Sequence[LoadResult]], ours: str) -> list[dict[str, Any]]:
    """Our rates over each other program's, paired by round; rounds in which nothing finished are left out."""
    rows: list[dict[str, Any]] = []
    for name, theirs in rounds.items():
        if name.startswith("homebase"):
            continue
        pairs = list(zip(rounds[ours], theirs, strict=True))
        rows.append(
            {
                "program": name,
                "decode_ratio": _divide([(a.decode_tps, b.decode_tps) for a, b in pairs]),
                "together_ratio": _divide([(a.together_tps, b.together_tps) for a, b in pairs]),
                "finished": sum(len(b.finished) for _, b in pairs),
                "streams_asked": sum(len(b.streams) for _, b in pairs),
            }
        )
    return rows


def _divide(pairs: Sequence[tuple[float | None, float | None]]) -> Spread | None:
    ratios = [a / b for a, b in pairs if a and b]
    return spread(ratios) if ratios else None


def compare_texts(rounds: Mapping[str, Sequence[LoadResult]], ours: str) -> list[dict[str, Any]]:
    """How many greedy texts of each program are the same as ours, and where the others part."""
    rows: list[dict[str, Any]] = []
    for name, theirs in rounds.items():
        if name == ours:
            continue
        loads = zip(rounds[ours], theirs, strict=True)
        streams = [pair for a, b in loads for pair in zip(a.streams, b.streams, strict=True)]
        texts = [(a.text, b.text) for a, b in streams if a.error is None and b.error is None and b.status == 200]
        parted = sorted(_first_difference(a, b) for a, b in texts if a != b)
        same_prompts = all(a.prompt_tokens == b.prompt_tokens for a, b in streams if b.error is None)
        rows.append(
            {
                "program": name,
                "compared": len(texts),
                "equal": len(texts) - len(parted),
                "parts_at_chars": parted,
                "same_prompt_tokens": same_prompts,
            }
        )
    return rows


def _first_difference(one: str, other: str) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def render(report: Mapping[str, Any]) -> str:
    """The report as Markdown: goals, rates, comparisons, and what idling costs."""
    lines = render_head("serve.py", dict(report))
    lines += [
        "",
        "All in float32, the only type in which MLX's CPU backend multiplies experts. Greedy. Rates are clients' own: "
        "of each stream from its first to its last chunk (its siblings' prompts are read meanwhile), and of all "
        "streams while all decode. Rates count finished streams alone: where some fail, the others have more room.",
    ]
    lines += render_goals(_judge(report))
    lines += ["", *_render_streams(report["rows"])]
    if report["peers"]:
        lines += ["", "homebase headless over the other, paired by round:", "", *_render_peers(report["peers"])]
        lines += [
            "",
            f"Greedy texts against homebase headless. {BROKEN_CHARACTERS}",
            "",
            *_render_texts(report["texts"]),
        ]
    if report["prefill"]:
        lines += ["", "Prompts alone, tokens by the time to the first text:", "", *_render_prefill(report["prefill"])]
    lines += ["", *_render_idle(report["rows"])]
    errors = sorted({error for row in report["rows"] for error in row.get("errors", ())})
    lines += ["", *(f"- `{error}`" for error in errors)] if errors else []
    return "\n".join(lines) + "\n"


def _render_streams(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    busy = [row for row in rows if row["streams"]]
    header = ("model", "streams", "program", "finished", "failed", "decode tok/s a stream", "of engine alone")
    header += ("tok/s while all decode", "total tok/s", "TTFT ms", "gap p95 ms")
    cells: list[tuple[Cell, ...]] = []
    for row in busy:
        key = (row["model"], row["streams"], "engine alone")
        alone = next(o["decode_tps"] for o in busy if (o["model"], o["streams"], o["program"]) == key)
        share = f"{row['decode_tps'] / alone:.0%}" if row["decode_tps"] else None
        failed = None if row["program"] == "engine alone" else row["failed"] + row["refused"]
        first = (row["model"], row["streams"], row["program"], row.get("finished"), failed, row["decode_tps"], share)
        rest = (row.get(name) for name in ("together_tps", "total_tps", "ttft_ms", "gap_p95_ms"))
        cells.append((*first, *rest))
    return render_table(header, cells)


def _render_peers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ("model", "streams", "against", "decode tok/s a stream", "tok/s while all decode", "its streams finished")
    cells = [
        (
            *(row["model"], row["streams"], row["program"], row["decode_ratio"], row["together_ratio"]),
            f"{row['finished']} of {row['streams_asked']}",
        )
        for row in rows
    ]
    return render_table(header, cells, digits=2)


def _render_texts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ("model", "streams", "program", "equal", "others part at character", "prompts as many tokens")
    cells = [
        (
            *(row["model"], row["streams"], row["program"], f"{row['equal']} of {row['compared']}"),
            ", ".join(map(str, row["parts_at_chars"])) or None,
            "yes" if row["same_prompt_tokens"] else "NO",
        )
        for row in rows
    ]
    return render_table(header, cells)


def _render_prefill(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ("model", "prompt tokens", "program", "tok/s", "homebase headless over it")
    cells: list[tuple[Cell, ...]] = []
    for row in rows:
        ratio = None if row["program"] == OURS else _compare_prefill(rows, row)
        shown = f"{ratio.show(2)}" if ratio else None
        rate = spread(row["prompt_tps"]) if row["prompt_tps"] else None
        cells.append((row["model"], row["prompt_tokens"], row["program"], rate, shown))
    return render_table(header, cells, digits=0)


def _compare_prefill(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> Spread | None:
    key = (row["model"], row["asked_tokens"], OURS)
    ours = next(o for o in rows if (o["model"], o["asked_tokens"], o["program"]) == key)["prompt_tps"]
    theirs = row["prompt_tps"]
    if len(ours) == len(theirs):
        return _divide(list(zip(ours, theirs, strict=True)))
    return spread([median(ours) / median(theirs)]) if ours and theirs else None


def _render_idle(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ("model", "program", "idle, share of one core", "resident MiB", "ready s")
    cells = [
        (row["model"], row["program"], f"{row['idle_cpu_ratio']:.1%}", row["resident_mib"], row["ready_s"])
        for row in rows
        if not row["streams"]
    ]
    return render_table(header, cells)


def _judge(report: Mapping[str, Any]) -> list[Goal]:
    goals: list[Goal] = []
    for row in report["peers"]:
        least, ratio = GOALS_DECODE.get(row["streams"]), row["decode_ratio"]
        if row["program"] in RIVALS and least and ratio:
            name = f"decode tok/s over {row['program']}, {_count(row)}"
            done = f"{row['finished']} of {row['streams_asked']} of its streams finished"
            goals.append(Goal(name, f">= {least}x", f"{ratio.show(2)}; {done}", ratio.median >= least))
    for row in report["texts"]:
        if row["program"].startswith("mlx_vlm"):
            name = f"greedy text equal to {row['program']}, {_count(row)}"
            measured = f"{row['equal']} of {row['compared']}"
            goals.append(Goal(name, "all", measured, row["equal"] == row["compared"] > 0))
    for row in report["prefill"]:
        ratio = _compare_prefill(report["prefill"], row) if row["program"] == "mlx_vlm" else None
        if ratio:
            name = f"prefill tok/s over mlx_vlm, {row['prompt_tokens']:,} tokens"
            goals.append(Goal(name, f">= {GOAL_PREFILL:g}x", ratio.show(2), ratio.median >= GOAL_PREFILL))
    return goals


def _count(row: Mapping[str, Any]) -> str:
    return "1 stream" if row["streams"] == 1 else f"{row['streams']} streams"
