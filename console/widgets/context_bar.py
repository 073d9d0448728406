"""The context of a stream against its limit, as a bar whose parts differ in shape as well as in colour."""

from __future__ import annotations

from console.format import format_count
from console.widgets.lines import Line, Span, line_width
from console.widgets.phases import is_over
from server.snapshot import StreamView

PARTS: tuple[tuple[str, str, str, str], ...] = (
    ("cached", "█", "█", "context-cached"),
    ("prefilled", "█", "▓", "context-prefilled"),
    ("to read", "░", "░", "context-pending"),
    ("generated", "█", "▒", "context-generated"),
    ("free", "·", "·", "context-free"),
)
"""Name, sign where there are colours, sign where there are none, and colour of each part, in the order of the bar."""


def context_parts(stream: StreamView) -> tuple[int, ...]:
    """Tokens of each of PARTS; they add up to the limit, or more."""
    cached = min(stream.cached_tokens, stream.prefill_done_tokens)
    prefilled = max(0, stream.prefill_done_tokens - cached)
    pending = 0 if is_over(stream) else max(0, stream.prompt_tokens - stream.prefill_done_tokens)
    used = cached + prefilled + pending + stream.completion_tokens
    return cached, prefilled, pending, stream.completion_tokens, max(0, stream.context_limit_tokens - used)


def part_sign(index: int, plain: bool) -> str:
    """The sign of one of PARTS, with or without the help of colour."""
    return PARTS[index][2] if plain else PARTS[index][1]


def share_cells(amounts: list[int], width: int) -> list[int]:
    """`width` cells shared in proportion; what is not zero gets one at least, while there are enough cells."""
    total = sum(amounts)
    if total <= 0 or width <= 0:
        return [0] * len(amounts)
    edges = [0]
    for amount in amounts:
        edges.append(edges[-1] + amount)
    cells = [round(edges[i + 1] * width / total) - round(edges[i] * width / total) for i in range(len(amounts))]
    for i, amount in enumerate(amounts):
        largest = max(range(len(cells)), key=cells.__getitem__)
        if amount > 0 and cells[i] == 0 and cells[largest] > 1:
            cells[i], cells[largest] = 1, cells[largest] - 1
    return cells


def context_bar(stream: StreamView, width: int, plain: bool = False) -> Line:
    """The whole context against its limit, exactly `width` cells."""
    return _bar(context_parts(stream), width, plain)


def prompt_bar(stream: StreamView, width: int, plain: bool = False) -> Line:
    """The prompt alone: cached, computed, still to read."""
    cached, prefilled, pending, *_ = context_parts(stream)
    return _bar((cached, prefilled, pending, 0, 0), width, plain)


def _bar(parts: tuple[int, ...], width: int, plain: bool) -> Line:
    cells = share_cells(list(parts), width)
    bar = tuple((part_sign(i, plain) * size, PARTS[i][3]) for i, size in enumerate(cells) if size)
    return bar or ((PARTS[-1][1] * max(0, width), "context-free"),)


def context_ratio(stream: StreamView) -> float | None:
    """How full the context is, of the limit; None without a limit."""
    if stream.context_limit_tokens <= 0:
        return None
    return stream.context_tokens / stream.context_limit_tokens


def context_legend(stream: StreamView, width: int, plain: bool = False) -> Line:
    """What each part of the bar is and how many tokens it has; parts that are empty are left out."""
    spans: list[Span] = []
    for i, tokens in enumerate(context_parts(stream)):
        name, _, _, colour = PARTS[i]
        if tokens:
            part: Line = (
                (f"{part_sign(i, plain)} ", colour),
                (f"{name} ", "text-muted"),
                (f"{format_count(tokens)}   ", ""),
            )
            if line_width(tuple(spans)) + line_width(part) - 3 <= width:
                spans.extend(part)
    return tuple(spans)
