"""Frozen facts, and the ring that keeps the last of them. Facts are never edited; no event carries text of a prompt.

Two families:
- engine events: what one step did; made on the engine thread, carried to the server loop in one hop per step;
- notices: rare facts that a person wants to read afterwards, kept in an `EventRing`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

Lane = Literal["parent", "child", "auxiliary", "unknown"]
"""The class a request is admitted under."""

Outcome = Literal["stop", "length", "cancelled", "failed"]
"""How a stream ended: the model or a stop string ended it, a token limit did, its client or operator did, it broke."""


class EngineEvent(msgspec.Struct, frozen=True):
    """Base of what the engine reports. All times are `time.monotonic()` seconds."""


class PrefillAdvanced(EngineEvent, frozen=True):
    """One prefill chunk of one sequence has run."""

    request_id: str
    done_tokens: int
    """Prompt tokens in the state now, cached ones included."""
    chunk_tokens: int
    seconds: float


class TokensEmitted(EngineEvent, frozen=True):
    """One sequence got new tokens."""

    request_id: str
    token_ids: tuple[int, ...]
    at_s: float


class SequenceEnded(EngineEvent, frozen=True):
    """One sequence has left the engine; nothing of it is left there."""

    request_id: str
    outcome: Outcome
    at_s: float
    error: str | None = None
    """One sentence when the outcome is `failed`."""


class StepDone(EngineEvent, frozen=True):
    """One engine step: how long it took and how many tokens it moved."""

    at_s: float
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    sequences: int


class MemorySampled(EngineEvent, frozen=True):
    """What MLX reports of its memory, in bytes. Only the engine thread asks MLX."""

    active_bytes: int
    cache_bytes: int
    peak_bytes: int


class EngineDied(EngineEvent, frozen=True):
    """The engine thread has ended by a fault; every sequence is gone."""

    reason: str


class Notice(msgspec.Struct, frozen=True, tag_field="kind", tag=True):
    """Base of what a person may want to read afterwards. `time_s` is Unix time in seconds."""

    time_s: float


class Refused(Notice, frozen=True, tag="refused"):
    """Admission said no."""

    request_id: str
    code: str
    message: str
    """The sentence that the client was sent."""
    status: int
    retry_after_s: int | None
    limit: int
    used: int
    """The limit that said no, and its use at that moment."""
    session: str
    lane: Lane
    client: str
    prompt_tokens: int
    max_tokens: int | None


class StreamEnded(Notice, frozen=True, tag="stream_ended"):
    """A stream is over."""

    request_id: str
    outcome: Outcome
    detail: str
    """In words, e.g. `client closed the connection in prefill at 40 %`; empty when the outcome says it all."""
    session: str
    lane: Lane
    client: str
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float | None
    age_s: float


class PolicyChanged(Notice, frozen=True, tag="policy_changed"):
    """Limits have new values, in force now."""

    origin: Literal["console", "file", "undo"]
    changes: tuple[tuple[str, str, str], ...]
    """(dotted key, old value, new value), values as TOML writes them; secrets are dots."""


class PolicyProblem(Notice, frozen=True, tag="policy_problem"):
    """homebase.toml became unusable; the running policy stays. An empty message says that it is usable again."""

    message: str


class ModelStateChanged(Notice, frozen=True, tag="model_state"):
    """The model is loading, ready or failed."""

    state: Literal["loading", "ready", "failed"]
    detail: str


class LogLine(Notice, frozen=True, tag="log"):
    """One line of the log."""

    level: Literal["debug", "info", "warning", "error"]
    source: str
    message: str
    request_id: str | None = None


AnyNotice = Refused | StreamEnded | PolicyChanged | PolicyProblem | ModelStateChanged | LogLine


class NumberedNotice(msgspec.Struct, frozen=True):
    """A notice and its place in the order of all notices, from 1."""

    sequence: int
    notice: AnyNotice


class EventRing:
    """The last notices of each kind, at most `size` of a kind, so that log lines never push out refusals.

    Any thread may publish or read; neither ever waits for a consumer.
    """

    def __init__(self, size: int = 500) -> None:
        self.listener: Callable[[AnyNotice], object] = lambda notice: None
        """Called with each notice on the thread that publishes it; must neither wait nor raise."""
        self._size = size
        self._lock = threading.Lock()
        self._rings: dict[type[Notice], deque[NumberedNotice]] = {}
        self._sequence = 0

    def publish(self, notice: AnyNotice) -> int:
        """Append a notice; the result is its sequence number."""
        with self._lock:
            self._sequence += 1
            ring = self._rings.setdefault(type(notice), deque(maxlen=self._size))
            number = self._sequence
            ring.append(NumberedNotice(number, notice))
        self.listener(notice)
        return number

    def after(self, sequence: int) -> tuple[NumberedNotice, ...]:
        """All kept notices with a higher number, oldest first."""
        with self._lock:
            newer = [entry for ring in self._rings.values() for entry in ring if entry.sequence > sequence]
        return tuple(sorted(newer, key=lambda entry: entry.sequence))
