"""What a stream's drafting comes to: how deep, how much is accepted, what a step brings; or why it does not draft.

Pure: a stream in, words and lines out.
"""

from __future__ import annotations

from console.format import format_ratio, safe_text
from console.widgets.lines import Line
from server.snapshot import StreamView

LOW_ACCEPTANCE_RATIO = 0.5
"""Under this acceptance is marked: half of the drafting is thrown away."""


def drafting_line(stream: StreamView) -> Line:
    """One line for a band: `draft 3 deep · 74 % accepted · 2.6 tok/step`; empty before anything is known."""
    if stream.phase in {"waiting", "prefill"} or not stream.mtp:
        return (("", ""),)
    if stream.mtp != "on":
        return (("drafting ", "text-muted"), (safe_text(stream.mtp), "text-muted"))
    if stream.draft_depth is None or stream.tokens_per_step is None:
        return (("draft ", "text-muted"), ("-", "text-muted"))
    words: Line = (("draft ", "text-muted"), (f"{stream.draft_depth} deep", ""))
    if stream.acceptance_ratio is not None:
        words = (*words, (" · ", "text-muted"), _acceptance(stream.acceptance_ratio), (" accepted", "text-muted"))
    return (*words, (" · ", "text-muted"), (f"{stream.tokens_per_step:.1f}", "bold"), (" tok/step", "text-muted"))


def drafting_fact(stream: StreamView) -> tuple[str, str] | None:
    """The same in a name and a word, for where there is little room; None before anything is known."""
    if not stream.mtp:
        return None
    if stream.mtp != "on":
        return "draft", "off"
    accepted = "" if stream.acceptance_ratio is None else f" · {format_ratio(stream.acceptance_ratio)}"
    return "draft", f"{stream.draft_depth or 0}{accepted}"


def drafting_in_short(stream: StreamView) -> list[tuple[str, str]]:
    """One name with words, or nothing: for a narrow column."""
    if stream.phase in {"waiting", "prefill"} or not stream.mtp:
        return []
    if stream.mtp != "on":
        return [("drafting", safe_text(stream.mtp))]
    if stream.tokens_per_step is None:
        return [("drafting", "on")]
    parts = [f"{stream.draft_depth or 0} deep", f"{stream.tokens_per_step:.1f}/step"]
    if stream.acceptance_ratio is not None:
        parts.insert(1, format_ratio(stream.acceptance_ratio))
    return [("drafting", " · ".join(parts))]


def drafting_words(stream: StreamView) -> list[tuple[str, str]]:
    """Names and words for a stream's detail, acceptance by depth included."""
    if stream.mtp != "on" or stream.tokens_per_step is None:
        return drafting_in_short(stream)
    step = ("drafting", f"{stream.draft_depth or 0} deep, {stream.tokens_per_step:.1f} tokens per step")
    if not stream.acceptance_by_depth:
        return [step]
    depths = " · ".join(format_ratio(ratio) for ratio in stream.acceptance_by_depth)
    return [step, ("accepted", f"{format_ratio(stream.acceptance_ratio)}; by depth {depths}")]


def _acceptance(ratio: float) -> tuple[str, str]:
    if ratio < LOW_ACCEPTANCE_RATIO:
        return f"▼ {format_ratio(ratio)}", "state-warning"
    return format_ratio(ratio), "bold"
