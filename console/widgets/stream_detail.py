"""Everything known of one stream, as lines: for the detail screen and for the side panel of wide terminals."""

from __future__ import annotations

from console.format import (
    cut,
    format_bytes,
    format_count,
    format_duration,
    format_parameters,
    format_rate,
    format_ratio,
    format_seconds,
    pad,
    pad_left,
    safe_text,
    wrap_words,
)
from console.widgets.context_bar import PARTS, context_bar, context_parts, context_ratio, part_sign
from console.widgets.drafting import drafting_in_short, drafting_words
from console.widgets.lines import Line, fit_line, split_ends
from console.widgets.phases import eta_s, is_over, is_stalling, outcome_words, phase_sign
from console.widgets.plot import PlotSize, beside, plot_block
from server.snapshot import EngineView, ModelView, Snapshot, StreamView, UpstreamView

NAME_WIDTH = 12


def detail_lines(stream: StreamView, width: int, rows: int, plain: bool = False) -> list[Line]:
    """One stream in lines of `width` cells: who, context, rates, times; when they are under `rows`, a plot.

    `plain` when colours cannot be told apart.
    """
    blank: Line = (("", ""),)
    half = width // 2
    if rows < 26 and width >= 70:
        rates = [*_rates(stream), *(_row(name, words) for name, words in drafting_in_short(stream))]
        numbers = beside(_context_parts(stream, plain), rates, half, 0)
        blocks = [beside(_who(stream), _times(stream), half, 0), [*_context(stream, width, plain), *numbers]]
    else:
        reused = _rows("reused", safe_text(stream.reuse), width) if stream.reuse else []
        context = [*_context(stream, width, plain), *_context_parts(stream, plain), *reused]
        drafting = [row for name, words in drafting_words(stream) for row in _rows(name, words, width)]
        blocks = [_who(stream), context, [*_rates(stream), *drafting], _times(stream)]
    lines = [_headline(stream, width), _rule(width)]
    if is_over(stream):
        lines += _rows("ended", outcome_words(stream), width)
    for block in blocks:
        lines += [*block, blank]
    left = rows - len(lines)
    if left >= 4:
        size = PlotSize(width, min(10, left - 1))
        lines += plot_block("decode", stream.decode_history_tps, stream.decode_tps, size, "state-decode", "60 s")
    return [fit_line(line, width) for line in lines]


def _headline(stream: StreamView, width: int) -> Line:
    symbol, words, role = phase_sign(stream)
    left: Line = ((f"{safe_text(stream.id)} ", "text-strong bold"), (f" {safe_text(stream.client)}", "accent-text"))
    return split_ends(left, ((f" {symbol} {words}", f"{role} bold"),), width)


def _rule(width: int) -> Line:
    return (("─" * width, "band-border"),)


def _row(name: str, value: str, role: str = "") -> Line:
    return ((pad(name, NAME_WIDTH), "text-muted"), (value, role))


def _rows(name: str, value: str, width: int) -> list[Line]:
    wrapped = wrap_words(value, width - NAME_WIDTH)
    return [_row(name if i == 0 else "", line) for i, line in enumerate(wrapped)]


def _who(stream: StreamView) -> list[Line]:
    deep = f", depth {stream.depth}" if stream.depth > 1 else ""
    rows = [_row("lane", f"{stream.lane}{deep}", "bold"), _row("session", safe_text(stream.session))]
    if stream.key:
        rows.append(_row("key", safe_text(stream.key)))
    if stream.parent_session is not None:
        rows.append(_row("child of", safe_text(stream.parent_session)))
    where = f" at {stream.upstream}" if stream.upstream else ""
    rows += [
        _row("model", f"{safe_text(stream.model)}{where}"),
        _row("answer", "streamed" if stream.streaming else "in one piece"),
    ]
    return rows


def _context(stream: StreamView, width: int, plain: bool) -> list[Line]:
    used = f"{format_count(stream.context_tokens)} of {format_count(stream.context_limit_tokens)}"
    return [
        split_ends(_row("context", used, "bold"), ((format_ratio(context_ratio(stream)), "bold"),), width),
        context_bar(stream, width, plain),
    ]


def _context_parts(stream: StreamView, plain: bool) -> list[Line]:
    lines: list[Line] = []
    for i, tokens in enumerate(context_parts(stream)):
        name, _, _, colour = PARTS[i]
        share = tokens / stream.context_limit_tokens if stream.context_limit_tokens else None
        lines.append(
            (
                (f"{part_sign(i, plain)} ", colour),
                (pad(name, NAME_WIDTH - 2), "text-muted"),
                (pad_left(format_count(tokens), 9), ""),
                (pad_left(format_ratio(share), 8), "text-muted"),
            )
        )
    return lines


def _rates(stream: StreamView) -> list[Line]:
    rows = [
        _row("prompt", f"{format_count(stream.prefill_done_tokens)} of {format_count(stream.prompt_tokens)} read"),
        _row("prefill", f"{format_rate(stream.prefill_tps)} tok/s", "state-prefill"),
    ]
    if stream.phase == "prefill":
        rows.append(_row("left", format_seconds(eta_s(stream))))
    rows.append(_row("decode", f"{format_rate(stream.decode_tps)} tok/s", "state-decode"))
    rows.append(_row("out", f"{format_count(stream.completion_tokens)} of {format_count(stream.max_tokens)} tokens"))
    return rows


def _times(stream: StreamView) -> list[Line]:
    idle = f"{'▲ ' if is_stalling(stream) else ''}{format_seconds(stream.idle_s)}"
    rows = [_row("TTFT", format_seconds(stream.ttft_s)), _row("age", format_duration(stream.age_s))]
    if not is_over(stream):
        rows.append(_row("idle", idle, "state-warning" if is_stalling(stream) else ""))
    return rows


def server_lines(snapshot: Snapshot, width: int) -> list[Line]:
    """What is served and by which engine, for the side panel when no stream is chosen."""
    model = snapshot.model
    lines: list[Line] = [split_ends((("model", "text-muted"),), _model_sign(model), width), _rule(width)]
    if model.state != "none":
        lines += _model_rows(snapshot, width)
    if snapshot.upstreams:
        blank: Line = (("", ""),)
        lines += [blank, (("upstreams", "text-muted"),), _rule(width), *_upstream_rows(snapshot.upstreams)]
    return [fit_line(line, width) for line in lines]


def _upstream_rows(upstreams: tuple[UpstreamView, ...]) -> list[Line]:
    """Each with how it is, and what it has now."""
    signs = {"up": "state-ok", "failing": "state-warning", "down": "state-error", "unused": "text-muted"}
    rows: list[Line] = []
    for upstream in upstreams:
        counts = f" · {upstream.in_flight} in flight · {format_count(upstream.requests_total)} asked"
        failed = f" · {format_count(upstream.failures_total)} failed" if upstream.failures_total else ""
        name: Line = ((pad(cut(upstream.name, NAME_WIDTH - 1), NAME_WIDTH), "text-muted"),)
        rows.append((*name, (upstream.state, signs[upstream.state]), (f"{counts}{failed}", "")))
    return rows


def _model_rows(snapshot: Snapshot, width: int) -> list[Line]:
    model = snapshot.model
    return [
        _row("name", safe_text(model.id), "accent-text bold"),
        _row("kind", f"{safe_text(model.architecture)}, {format_parameters(model.parameters)} parameters"),
        _row("weights", f"{format_bytes(model.weights_bytes)}, {_precision(model)}"),
        _row("context", f"{format_count(model.effective_context_limit_tokens)} per stream"),
        _row("", _own_context(model), "text-muted"),
        *_rows("drafting", safe_text(model.mtp), width),
        _row("device", safe_text(model.device)),
        *_steps(snapshot.engine),
        _row("tokens", f"{format_count(snapshot.rates.decode_tokens_total)} generated"),
        _row("", f"{format_count(snapshot.rates.prefill_tokens_total)} read"),
    ]


def _steps(engine: EngineView) -> list[Line]:
    each = "" if engine.tokens_per_step is None else f" · {engine.tokens_per_step:.1f} tokens each"
    rows = [_row("steps", f"{format_count(engine.steps_total)}{each}")]
    if engine.cost.steps:
        rows.append(_row("", f"durations foreseen to {format_ratio(engine.cost.error_ratio)}", "text-muted"))
    return rows


def _own_context(model: ModelView) -> str:
    """The model's own limit, and what keeps streams below it."""
    own = f"{format_count(model.context_limit_tokens)} by the model itself"
    return f"{own}; {model.context_limit_set_by}" if model.context_limit_set_by else own


def _precision(model: ModelView) -> str:
    """How the weights are kept: how they are quantized, or the type of their numbers."""
    return safe_text(model.dtype if model.quantization in ("", "none") else model.quantization)


def _model_sign(model: ModelView) -> Line:
    if model.state == "none":
        return (("○ no local model", "text-muted"),)
    signs = {"ready": ("●", "state-ok"), "loading": ("◌", "state-waiting"), "failed": ("✕", "state-error")}
    symbol, role = signs[model.state]
    return ((f"{symbol} {model.state}", f"{role} bold"),)
