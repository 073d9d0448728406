"""Requests of the history as a table that fits a width: which columns, and what stands in them. Pure."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from console.format import (
    count_noun,
    format_bytes,
    format_count,
    format_rate,
    format_ratio,
    format_seconds,
    safe_text,
)
from server.history.records import RequestRecord

GAP = 1
"""Blanks between columns; with one, eighty columns hold all that tells most."""

LEAST_LAST = 15
"""The last column gets what is left, and at least this."""

DAY_S = 86_400.0


class Column(msgspec.Struct, frozen=True):
    """One column of fixed width."""

    title: str
    width: int
    show: Callable[[RequestRecord], str]
    rank: int = 0
    """Columns of a higher rank are left out first where the width does not do; those of 0 never are."""
    is_number: bool = True


def _describe_end(request: RequestRecord) -> str:
    end = request.outcome or request.decision
    return f"{end}: {request.detail}" if request.detail else end


def _describe_limit(request: RequestRecord) -> str:
    if request.limit_value is None or request.used_value is None:
        return "-"
    show = format_bytes if request.decision.startswith("memory") else _format_figure
    return f"{show(request.used_value)} of {show(request.limit_value)}"


def _format_figure(number: float) -> str:
    return f"{number:,g}" if abs(number) < 1000 else f"{number:,.0f}"


_CLIENT = Column("client", 14, lambda each: each.client, is_number=False)
_LANE = Column("lane", 9, lambda each: each.lane, 1, is_number=False)
_SESSION = Column("session", 23, lambda each: each.session, 6, is_number=False)
_KEY = Column("key", 10, lambda each: each.key or "-", 9, is_number=False)
_MODEL = Column("model", 16, lambda each: each.model, 10, is_number=False)
_PROMPT = Column("prompt", 8, lambda each: format_count(each.prompt_tokens), 1)

REQUEST_COLUMNS = (
    _CLIENT,
    _LANE,
    _SESSION,
    _KEY,
    _MODEL,
    _PROMPT,
    Column("cached", 8, lambda each: format_count(each.cached_tokens) if each.was_admitted else "-", 4),
    Column("out", 6, lambda each: format_count(each.completion_tokens) if each.was_admitted else "-", 1),
    Column("waited", 8, lambda each: format_seconds(each.waited_s or None), 5),
    Column("TTFT", 7, lambda each: format_seconds(each.ttft_s), 2),
    Column("read/s", 7, lambda each: format_rate(each.prefill_tps), 7),
    Column("tok/s", 6, lambda each: format_rate(each.decode_tps), 2),
    Column("accept", 6, lambda each: format_ratio(each.acceptance_ratio), 8),
    Column("took", 9, lambda each: format_seconds(each.duration_s) if each.was_admitted else "-", 3),
    Column("end", LEAST_LAST, _describe_end, is_number=False),
)

REFUSAL_COLUMNS = (
    _CLIENT,
    _LANE,
    _SESSION,
    _KEY,
    _MODEL,
    _PROMPT,
    Column("in use", 20, _describe_limit, 2),
    Column("waited", 8, lambda each: format_seconds(each.waited_s or None), 5),
    Column("again in", 8, lambda each: format_seconds(each.retry_after_s), 3),
    Column("refused for", 18, lambda each: each.decision, is_number=False),
)


def build_table(requests: Sequence[RequestRecord], width: int, now_s: float, *, refused_only: bool) -> Table:
    """The table, one line a request."""
    columns = (_build_time(requests, now_s), *(REFUSAL_COLUMNS if refused_only else REQUEST_COLUMNS))
    shown = choose_columns(columns, width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold", width=width)
    for column in shown:
        is_last = column is shown[-1]
        table.add_column(
            column.title,
            width=None if is_last else column.width,
            ratio=1 if is_last else None,
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if column.is_number else "left",
        )
    for request in requests:
        table.add_row(*(Text(safe_text(column.show(request)), style=_style(request)) for column in shown))
    return table


def choose_columns(columns: Sequence[Column], width: int) -> list[Column]:
    """Those that have room, the most telling first, in their own order."""
    left = width + GAP
    chosen: list[Column] = []
    for column in sorted(columns, key=lambda each: each.rank):
        if column.rank and column.width + GAP > left:
            break
        chosen.append(column)
        left -= column.width + GAP
    return [column for column in columns if column in chosen]


def describe_whole(requests: Sequence[RequestRecord]) -> str:
    """All of them in one sentence."""
    refused = Counter(each.decision for each in requests if not each.was_admitted)
    admitted = [each for each in requests if each.was_admitted]
    parts = [count_noun(len(requests), "request")]
    if refused:
        parts.append(f"{refused.total():,} refused ({', '.join(f'{code} {n:,}' for code, n in refused.most_common())})")
    if admitted:
        prompt = sum(each.prompt_tokens or 0 for each in admitted)
        cached = format_ratio(sum(each.cached_tokens for each in admitted) / prompt) if prompt else "0 %"
        out = sum(each.completion_tokens for each in admitted)
        parts += [f"prompt {prompt:,} tokens, {cached} of them cached", f"out {out:,}"]
    times = [each.ttft_s for each in admitted if each.ttft_s is not None]
    if times:
        parts.append(
            f"TTFT {format_seconds(statistics.median(times))} (median), {format_seconds(find_p95(times))} (p95)"
        )
    return safe_text("; ".join(parts))


def find_p95(values: Sequence[float]) -> float:
    """The smallest value that 95 of 100 do not exceed."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * 95 // 100) - 1]


def _build_time(requests: Sequence[RequestRecord], now_s: float) -> Column:
    """With its date where the time of day does not tell enough."""
    times = [each.arrived_s for each in requests] or [now_s]
    days = {time.localtime(at)[:3] for at in (min(times), max(times), now_s)}
    form, width = ("%H:%M:%S", 8) if len(days) == 1 else ("%m-%d %H:%M:%S", 14)
    return Column("time", width, lambda each: time.strftime(form, time.localtime(each.arrived_s)), is_number=False)


def _style(request: RequestRecord) -> str:
    if not request.was_admitted:
        return "yellow"
    return "red" if request.outcome == "failed" else ""
