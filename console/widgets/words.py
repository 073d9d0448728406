"""What the home screen says when there are no streams to show: what is so, why, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from console.format import base_url, curl_example, cut, format_seconds, safe_text, wrap_words
from console.widgets.lines import Line, Span, line_width
from console.widgets.title import stale_age_s
from server.snapshot import Snapshot

LONG_STEP_S = 2.0
"""A step that runs for longer is told: until it ends, no stream gets a token."""


def empty_lines(snapshot: Snapshot, asks_key: bool, width: int, rows: int) -> list[Line]:
    """The words for this state, in the middle of `width` x `rows`."""
    if snapshot.state == "engine_dead" or snapshot.model.state == "failed":
        block = _broken(snapshot, width)
    elif snapshot.state == "starting" or snapshot.model.state == "loading":
        block = _loading(snapshot, width)
    elif snapshot.state in {"draining", "stopped"}:
        block = _leaving(snapshot)
    else:
        block = _invite(snapshot, asks_key)
    return _centre(block, width, rows)


def _invite(snapshot: Snapshot, asks_key: bool) -> list[Line]:
    url = base_url(snapshot.host, snapshot.port)
    command = curl_example(url, safe_text(name_to_try(snapshot)), asks_key)
    first = not snapshot.admission.admitted_total
    lines: list[Line] = [
        (
            ("○ ", "text-muted"),
            ("No streams yet." if first else "No streams.", "text-strong bold"),
            ("  The server is listening.", ""),
        ),
        (("Point a client at ", "text-muted"), (url, "accent-text bold"), (", or try:", "text-muted")),
        (("", ""),),
        *[((line, "state-ok"),) for line in command],
        (("", ""),),
        (
            ("y", "accent-text bold"),
            (" copies the command   ", "text-muted"),
            ("Y", "accent-text bold"),
            (" copies the URL", "text-muted"),
        ),
    ]
    return lines


def name_to_try(snapshot: Snapshot) -> str:
    """A model that answers: our own, or where there is none the first that an upstream names."""
    named = (model for upstream in snapshot.upstreams for model in upstream.models if "*" not in model)
    return snapshot.model.id or next(named, "MODEL")


def _loading(snapshot: Snapshot, width: int) -> list[Line]:
    model = snapshot.model
    return [
        (("◌ ", "state-waiting bold"), (f"Loading {cut(safe_text(model.id), 40)}", "text-strong bold")),
        ((cut(safe_text(model.detail), width - 8), ""),),
        (("", ""),),
        (("Requests are refused with model_loading until it is ready.", "text-muted"),),
        (("4", "accent-text bold"), (" shows the log", "text-muted")),
    ]


def _broken(snapshot: Snapshot, width: int) -> list[Line]:
    is_model = snapshot.model.state == "failed"
    what = "The model could not be loaded." if is_model else "The engine has ended; nothing can be generated."
    why = snapshot.model.detail if is_model else snapshot.engine.error or "no reason was given"
    lines: list[Line] = [(("✕ ", "state-error bold"), (what, "text-strong bold"))]
    lines += [((part, "state-error"),) for part in wrap_words(safe_text(why), width - 8)[:4]]
    next_step = (
        "Correct [model] path in homebase.toml (3 Policy) and start again."
        if is_model
        else "Every stream was told. Quit and start again."
    )
    return [
        *lines,
        (("", ""),),
        ((next_step, ""),),
        (
            ("4", "accent-text bold"),
            (" shows the log   ", "text-muted"),
            ("q", "accent-text bold"),
            (" quits", "text-muted"),
        ),
    ]


def _leaving(snapshot: Snapshot) -> list[Line]:
    word = "Draining: no new request is admitted." if snapshot.state == "draining" else "The server has stopped."
    return [
        (("◐ ", "state-waiting bold"), (word, "text-strong bold")),
        (("q", "accent-text bold"), (" quits", "text-muted")),
    ]


def _centre(block: list[Line], width: int, rows: int) -> list[Line]:
    size = max(line_width(line) for line in block)
    left: Span = (" " * max(1, (width - size) // 2), "")
    above = max(0, (rows - len(block)) // 2)
    blank: Line = (("", ""),)
    return [*[blank] * above, *[(left, *line) for line in block]]


def notice_lines(
    snapshot: Snapshot, warnings: Sequence[str], now_s: float, width: int, most_rows: int = 3
) -> list[Line]:
    """What is unusual now, gravest first and in `most_rows` at the most; empty when all is as it should be.

    `warnings` are what the policy's own state warns of: values that are allowed and still worth a second look.
    """
    told = [*_grave_notices(snapshot), *_slow_notices(snapshot, now_s)]
    told += [("▲", "state-warning", safe_text(warning)) for warning in warnings]
    if not told:
        return [_hint_nano(width)] if snapshot.model.embedded else []
    lines: list[Line] = []
    for index, (symbol, role, words) in enumerate(told):
        room = most_rows - len(lines) - (len(told) - index - 1)
        if len(lines) < most_rows:
            lines += _notice(symbol, role, words, width, max(1, min(2, room)))
    return lines


def _grave_notices(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    policy = snapshot.policy
    if snapshot.state == "engine_dead":
        reason = safe_text(snapshot.engine.error or "no reason was given")
        yield "✕", "state-error", f"engine ended, quit and start again: {reason}"
    if policy.problem is not None and policy.exists:
        file = safe_text(PurePath(policy.path).name)
        yield "✕", "state-error", f"{file} is not in force: {safe_text(policy.problem)}"
    elif policy.problem is not None:
        yield "▲", "state-warning", safe_text(policy.problem)


def _slow_notices(snapshot: Snapshot, now_s: float) -> Iterator[tuple[str, str, str]]:
    age_s, step_s = stale_age_s(snapshot, now_s), snapshot.engine.step_age_s
    if snapshot.state == "engine_dead":
        return
    if age_s is not None:
        yield "▲", "state-warning", f"numbers are {format_seconds(age_s)} old; {_step_words(snapshot)}"
    elif step_s is not None and step_s > LONG_STEP_S and snapshot.engine.busy:
        yield "▲", "state-warning", _step_words(snapshot)


def _hint_nano(width: int) -> Line:
    words = "nano is a tiny code-babbling model for trying the console; serve your own with [model] path."
    if width < len(words) + 4:
        words = "nano: a tiny code-babbling model to try the console; yours: [model] path"
    return _notice("»", "accent-text", words, width, 1)[0]


def _step_words(snapshot: Snapshot) -> str:
    reading = any(stream.phase == "prefill" for stream in snapshot.streams)
    what = "a prefill chunk" if reading else "an engine step"
    return f"{what} has been running for {format_seconds(snapshot.engine.step_age_s)}"


def _notice(symbol: str, role: str, words: str, width: int, rows: int) -> list[Line]:
    parts = wrap_words(words, width - 3)
    kept = parts if len(parts) <= rows else [*parts[: rows - 1], cut(" ".join(parts[rows - 1 :]), width - 3)]
    heads = [f" {symbol} ", *["   "] * (len(kept) - 1)]
    return [((head, f"{role} bold"), (part, role)) for head, part in zip(heads, kept, strict=True)]
