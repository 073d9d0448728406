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
    """Computed in this step; 0 when tokens were taken over from another sequence, which takes no time."""
    seconds: float
    cached_tokens: int = 0
    """Of `done_tokens`, those that were not computed for this sequence: from the prefix cache or another sequence."""


class PromptLookedUp(EngineEvent, frozen=True):
    """What of one sequence's prompt the prefix cache had; told once, before its first chunk."""

    request_id: str
    cached_tokens: int
    """Taken over: 0 is a miss."""
    diverged_at: int | None
    """Position of the first prompt token that is not cached; None when all are."""
    detail: str
    """In words."""


class PromptShared(EngineEvent, frozen=True):
    """Another sequence computes what one sequence's prompt begins with, or has done so, or does so no more."""

    request_id: str
    diverged_at: int | None
    """Position of the first prompt token that is neither cached nor the other one's; None when all are."""
    detail: str
    """In words; takes the place of what `PromptLookedUp` told."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """How likely the model held a token: natural logarithms of its softmax, before penalties, bias, temperature and
    filters."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the most likely tokens, best first, as many as were asked for."""


class TokensEmitted(EngineEvent, frozen=True):
    """One sequence got new tokens."""

    request_id: str
    token_ids: tuple[int, ...]
    """At least one; with drafting up to one more than were drafted."""
    at_s: float
    drafted_tokens: int = 0
    """How many the MTP head proposed for this step."""
    accepted_tokens: int = 0
    """How many of those the model agreed with, from the first on."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each token when they were asked for; else empty."""


class DraftingChanged(EngineEvent, frozen=True):
    """Drafting went on or off for one sequence, or has another reason to be off."""

    request_id: str
    state: str
    """In words: `on`, or `off: ` and why."""


class SequenceEnded(EngineEvent, frozen=True):
    """One sequence has left the engine; nothing of it is left there."""

    request_id: str
    outcome: Outcome
    at_s: float
    error: str | None = None
    """One sentence when the outcome is `failed`."""
    has_lost_form: bool = False
    """True when it failed because its answer could not be held to its form any further."""


class StepDone(EngineEvent, frozen=True):
    """One engine step: how long it took and how many tokens it moved."""

    at_s: float
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    sequences: int
    decoding: int = 0
    """Sequences that got tokens."""
    context_tokens: int = 0
    """In the states of those that decoded, before it."""


class StepCost(EngineEvent, frozen=True):
    """What a step costs by its parts, in seconds, as far as measured steps have told: see `server.engine.cost`."""

    step_s: float = 0.0
    """Any step."""
    sequence_s: float = 0.0
    """Each sequence that decodes."""
    wide_s: float = 0.0
    """Each of them that verifies drafts."""
    row_s: float = 0.0
    """Each of their tokens in the forward."""
    context_s: float = 0.0
    """Each 4096 tokens in their states."""
    chunk_s: float = 0.0
    """Any prefill chunk, however short: a forward of many tokens goes other ways than one of few."""
    prefill_s: float = 0.0
    """Each 64 tokens of a prefill chunk."""
    prefill_context_s: float = 0.0
    """Each 64 tokens of a chunk, for each 4096 tokens before them."""
    draft_call_s: float = 0.0
    draft_row_s: float = 0.0
    """Each call of the MTP head, and each row in it."""
    pace_ratio: float = 1.0
    """How long the last steps took against all this: 2 on a machine that has just become half as fast."""
    error_ratio: float = 1.0
    """Mean of the last predictions' errors, relative to what the step then took; 1 before any was made."""
    steps: int = 0
    """Steps measured."""


class MemorySampled(EngineEvent, frozen=True):
    """What MLX reports of its memory, in bytes. Only the engine thread asks MLX."""

    active_bytes: int
    cache_bytes: int
    peak_bytes: int


class PrefixCacheSampled(EngineEvent, frozen=True):
    """What the prefix cache holds, in bytes, when that has changed."""

    memory_bytes: int
    budget_bytes: int
    """What it may take of memory; 0 when it is off."""
    disk_bytes: int


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
    limit: int | float | None
    used: int | float | None
    """The limit that said no, and its use at that moment; None where no limit did, as while the model loads."""
    session: str
    lane: Lane
    client: str
    prompt_tokens: int | None
    """None when the prompt was refused uncounted."""
    max_tokens: int | None
    arrived_s: float = 0.0
    """Unix time at which the request's head had been read; 0 when nobody has said."""
    parent_session: str | None = None
    depth: int = 0
    """Of its session: 0 for no child; a child has its parent's plus 1."""
    family: str = ""
    key: str = ""
    model: str = ""
    waited_s: float = 0.0
    """For a slot, before it was refused."""
    limit_key: str = ""
    """Dotted key of the limit; empty where no limit did."""


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
    reuse: str = ""
    """What of its prompt was not computed for it, and from which token on it was, in words."""
    arrived_s: float = 0.0
    """Unix time at which the request's head had been read; 0 when nobody has said."""
    parent_session: str | None = None
    depth: int = 0
    key: str = ""
    model: str = ""
    upstream: str = ""
    """Who answered; empty for the model in this process."""
    cached_tokens: int = 0
    max_tokens: int = 0
    waited_s: float = 0.0
    """For a slot, before it was admitted."""
    prefill_tps: float | None = None
    decode_tps: float | None = None
    """From its first token to its last."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class PolicyChanged(Notice, frozen=True, tag="policy_changed"):
    """Limits have new values, in force now."""

    origin: Literal["console", "api", "file", "undo"]
    changes: tuple[tuple[str, str, str], ...]
    """(dotted key, old value, new value), values as TOML writes them; secrets are dots."""
    by: str = ""
    """Who asked for it over HTTP: the name of a key, or an address; empty for any other origin."""


class PolicyProblem(Notice, frozen=True, tag="policy_problem"):
    """homebase.toml became unusable; the running policy stays. An empty message says that it is usable again."""

    message: str


class ModelStateChanged(Notice, frozen=True, tag="model_changed"):
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
        self._listeners: tuple[Callable[[AnyNotice], object], ...] = ()
        self._size = size
        self._lock = threading.Lock()
        self._rings: dict[type[Notice], deque[NumberedNotice]] = {}
        self._sequence = 0

    @property
    def newest(self) -> int:
        """The number of the last notice, 0 before there is one."""
        return self._sequence

    def publish(self, notice: AnyNotice) -> int:
        """Append a notice; the result is its sequence number."""
        with self._lock:
            self._sequence += 1
            ring = self._rings.setdefault(type(notice), deque(maxlen=self._size))
            number = self._sequence
            ring.append(NumberedNotice(number, notice))
        for listener in self._listeners:
            listener(notice)
        return number

    def subscribe(self, listener: Callable[[AnyNotice], object]) -> Callable[[], None]:
        """Call `listener` with each notice on the thread that publishes it; it must neither wait nor raise.

        The result ends that.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unsubscribe

    def after(self, sequence: int) -> tuple[NumberedNotice, ...]:
        """All kept notices with a higher number, oldest first."""
        with self._lock:
            newer = [entry for ring in self._rings.values() for entry in ring if entry.sequence > sequence]
        return tuple(sorted(newer, key=lambda entry: entry.sequence))
