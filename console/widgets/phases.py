"""How a stream's phase and outcome are said: a symbol, a word and a colour, never a colour alone."""

from __future__ import annotations

from console.format import format_seconds, safe_text
from server.snapshot import StreamView

STALLING_AFTER_S = 2.0
"""A stream in decode with no token for this long is marked: something else has the engine, or nothing moves."""

PHASES: dict[str, tuple[str, str, str]] = {
    "waiting": ("○", "waiting", "state-waiting"),
    "prefill": ("◐", "prefill", "state-prefill"),
    "decode": ("●", "decode", "state-decode"),
    "finished": ("■", "finished", "state-finished"),
}

OUTCOMES: dict[str, tuple[str, str, str]] = {
    "stop": ("■", "finished: stop", "state-finished"),
    "length": ("■", "finished: length", "state-finished"),
    "cancelled": ("↯", "cancelled", "state-warning"),
    "failed": ("✕", "failed", "state-error"),
}


def phase_sign(stream: StreamView) -> tuple[str, str, str]:
    """Symbol, words and colour of what the stream does now or how it ended."""
    if stream.outcome is not None:
        return OUTCOMES[stream.outcome]
    if is_stalling(stream):
        return "▲", f"{stream.phase}, no token for {format_seconds(stream.idle_s)}", "state-warning"
    if stream.queue_position is not None:
        soon = f", about {format_seconds(stream.expected_wait_s)}" if stream.expected_wait_s is not None else ""
        return "○", f"no. {stream.queue_position} in line{soon}", "state-waiting"
    return PHASES[stream.phase]


def is_stalling(stream: StreamView) -> bool:
    """True while a stream that should be sending tokens sends none."""
    return stream.phase == "decode" and stream.idle_s > STALLING_AFTER_S


def is_over(stream: StreamView) -> bool:
    """True when nothing of it runs any more."""
    return stream.outcome is not None or stream.phase == "finished"


def outcome_words(stream: StreamView) -> str:
    """How it ended, in full: `cancelled: client closed the connection`; empty while it runs."""
    if stream.outcome is None:
        return "no longer listed; the log tells how it ended" if is_over(stream) else ""
    words = OUTCOMES[stream.outcome][1]
    return f"{words}: {safe_text(stream.outcome_detail)}" if stream.outcome_detail else words


def eta_s(stream: StreamView) -> float | None:
    """Seconds until the prompt is read at the present rate, None when there is no rate yet."""
    left = stream.prompt_tokens - stream.prefill_done_tokens
    if stream.prefill_tps is None or stream.prefill_tps <= 0:
        return None
    return left / stream.prefill_tps


def family(streams: tuple[StreamView, ...]) -> tuple[tuple[int, StreamView], ...]:
    """Streams with their depth, each child right below its parent, else in the order given."""
    sessions = {stream.session: stream.id for stream in streams}
    ordered: list[tuple[int, StreamView]] = []
    placed: set[str] = set()

    def place(stream: StreamView, depth: int) -> None:
        if stream.id in placed:
            return
        placed.add(stream.id)
        ordered.append((depth, stream))
        for child in streams:
            if child.parent_session == stream.session and child.session != stream.session:
                place(child, min(depth + 1, 3))

    for stream in streams:
        if stream.parent_session not in sessions or stream.parent_session == stream.session:
            place(stream, 0)
    for stream in streams:
        place(stream, 0)
    return tuple(ordered)
