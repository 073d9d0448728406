"""The state of everything now, as one frozen object: what the console draws and `GET /homebase/snapshot` answers.

Only shapes live here; `telemetry` fills them. Rates are derived at the moment of the snapshot, `None` means
"not yet" and is never written as 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from server.events import Lane, Outcome, Refused, StepCost
from server.policy import LimitValue

Phase = Literal["waiting", "prefill", "decode", "finished"]
ServerState = Literal["starting", "serving", "stalled", "draining", "stopped", "engine_dead"]


class StreamView(msgspec.Struct, frozen=True):
    """One stream, in flight or just finished."""

    id: str
    session: str
    parent_session: str | None
    lane: Lane
    client: str
    """From the User-Agent, made safe to print."""
    model: str
    phase: Phase
    context_tokens: int
    """Tokens in the sequence's state now: prefilled so far plus generated."""
    context_limit_tokens: int
    """The effective limit of one stream when this one was admitted."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were not computed for this stream, but found in the prefix cache or read by another stream."""
    completion_tokens: int
    max_tokens: int
    prefill_done_tokens: int
    """Prompt tokens in the state, cached ones included."""
    prefill_tps: float | None
    """Prompt tokens computed (not cached) per second of the clock, other prompts' turns included: over the last 10 s
    while it is read, and over all of them afterwards. None before 32 of them."""
    decode_tps: float | None
    """Over the last 32 tokens, or the last 5 s if that is fewer; falls when tokens stop coming. Once the stream is
    over, the mean of its last 60 s up to its last token, which are those of the history."""
    ttft_s: float | None
    age_s: float
    idle_s: float
    """Since the last sign of progress: a chunk or a token."""
    streaming: bool
    decode_history_tps: tuple[float, ...]
    """One value per second since its first token, the last 60, newest last; the last part of a second, too, once the
    stream is over."""
    outcome: Outcome | None = None
    outcome_detail: str = ""
    finished_ago_s: float | None = None
    mtp: str = ""
    """`on`, or `off: ` and why; empty before its first step."""
    reuse: str = ""
    """What of its prompt was not computed for it, and why not more, in words; empty before that was looked up."""
    diverged_at: int | None = None
    """Position of the first prompt token that neither the prefix cache nor another stream had; None when all were."""
    draft_depth: int | None = None
    """Tokens drafted for its newest decode step."""
    acceptance_ratio: float | None = None
    """Accepted over drafted, its last 128 decode steps."""
    acceptance_by_depth: tuple[float, ...] = ()
    """The same by the place of the draft, the first one first."""
    tokens_per_step: float | None = None
    """Emitted per decode step, its last 128."""
    key: str = ""
    """Name of the key that it came with; empty when none is asked for."""
    depth: int = 0
    """Of its session: 0 for no child; a child has its parent's plus 1."""
    family: str = ""
    """Of its client: codex, opencode and so on; empty when not told."""
    queue_position: int | None = None
    """Its place in the line of those that wait for a slot, from 1; None once it has one."""
    expected_wait_s: float | None = None
    """Until it is likely to get one; None when it has one, or nothing can be said."""
    upstream: str = ""
    """The server that answers it; empty for our own model."""
    governed: bool = False
    """True when it has a slot although another server answers it."""

    @property
    def has_slot(self) -> bool:
        """True when it counts in admission, as long as it is in flight."""
        return not self.upstream or self.governed


class LinePlace(msgspec.Struct, frozen=True):
    """Where a request stands that waits for a slot."""

    position: int
    """From 1."""
    expected_wait_s: float | None


class SessionView(msgspec.Struct, frozen=True):
    """One session: what is known of it since the server has first seen it. Not in the snapshot: there may be many."""

    session: str
    parent_session: str | None
    root_session: str
    """Whose children, and children's children, it belongs to; a parent is its own."""
    depth: int
    lane: Lane
    """Its own: that of its side requests is auxiliary."""
    client: str
    family: str
    key: str
    first_seen_s: float
    last_seen_s: float
    """Unix times."""
    requests: int
    in_flight: int
    admitted: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """Of its requests that are over."""
    last_outcome: str
    """How its newest request ended: an outcome, or the code of a refusal; empty before."""
    children: tuple[str, ...]


class AdmissionView(msgspec.Struct, frozen=True):
    """Slots, and what was refused."""

    in_flight: int
    max_in_flight: int
    peak_in_flight: int
    admitted_total: int
    refused_total: int
    refused_by_code: dict[str, int]
    finished_by_outcome: dict[str, int]
    recent_refusals: tuple[Refused, ...]
    """Newest first, at most 50."""


class PolicyView(msgspec.Struct, frozen=True):
    """The policy in force and where it came from."""

    path: str
    exists: bool
    etag: str
    problem: str | None
    """Why the file on disk is not in force, when it is not."""
    values: dict[str, LimitValue]
    """Dotted key to value; secrets are shown as dots."""


class FetchView(msgspec.Struct, frozen=True):
    """How far a model is that is being fetched."""

    done_bytes: int
    total_bytes: int
    rate_bps: float | None
    """Bytes per second over the last 10 s."""
    eta_s: float | None
    """Seconds that the rest takes at this rate; None when nothing comes."""


class ModelView(msgspec.Struct, frozen=True):
    """What is served."""

    id: str
    path: str
    state: Literal["loading", "ready", "failed", "none"]
    """`none`: no model is served here ([model] path is empty)."""
    detail: str
    """What it is doing, why it failed, or why no stream has room beside it, in words."""
    architecture: str
    dtype: str
    quantization: str
    """In words, e.g. `4-bit g32`; `none` when the weights are not quantized."""
    parameters: int
    weights_bytes: int
    context_limit_tokens: int
    """The model's own limit."""
    effective_context_limit_tokens: int
    """What one stream may use now: the least of the model's own, the policy's and what memory holds; 0 for no room."""
    device: str
    mtp: str
    """Whether drafting runs, and if not why, in words."""
    embedded: bool
    """True for nano, the model that ships inside for trying the console."""
    load_s: float | None
    context_limit_set_by: str = ""
    """Dotted key of the limit that makes the effective one lower than the model's own; empty when none does."""
    fetch: FetchView | None = None
    """While it is being fetched from Hugging Face."""
    bandwidth_bps: float | None = None
    """Bytes per second that the device reads, measured when the model was loaded."""


class MemoryView(msgspec.Struct, frozen=True):
    """Memory in bytes: MLX's own account, the process's, the machine's."""

    active_bytes: int
    cache_bytes: int
    peak_bytes: int
    resident_bytes: int
    machine_bytes: int
    budget_bytes: int = 0
    """What MLX may hold in all (engine.memory_budget_gib); 0 when there is no limit."""
    promised_bytes: int = 0
    """What the contexts of streams in flight may come to take, at their full length."""
    is_full: bool = False
    """A place is free, and a request would be refused for want of memory."""
    prefix_cache_bytes: int = 0
    """Of the active bytes."""
    prefix_cache_budget_bytes: int = 0
    """What the prefix cache may take; 0 when it is off."""
    prefix_cache_disk_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """What gives way to nobody: weights, contexts and a step's arrays. The rest are prefixes and freed buffers."""
        return max(0, self.active_bytes - self.prefix_cache_bytes)


class RatesView(msgspec.Struct, frozen=True):
    """Rates over all streams."""

    decode_tps: float
    prefill_tps: float
    """Tokens of the last 2 seconds, per second."""
    decode_history_tps: tuple[float, ...]
    prefill_history_tps: tuple[float, ...]
    """One value per second, the last 300 seconds, newest last."""
    decode_tokens_total: int
    prefill_tokens_total: int


class ForecastView(msgspec.Struct, frozen=True):
    """What one more stream would get, beside those in flight."""

    basis: Literal["estimate", "measured"]
    """`measured` when so many were seen to decode on such contexts lately."""
    streams: int
    """In flight, and the one more."""
    context_tokens: int
    """Of the one more: the mean of the others."""
    decode_tps: float
    """Its decode rate, once all decode."""
    lowest_tps: float
    """The lowest of all."""


class EngineView(msgspec.Struct, frozen=True):
    """The engine thread."""

    alive: bool
    busy: bool
    steps_total: int
    step_s: float | None
    """Duration of the last finished step."""
    step_age_s: float | None
    """Since the last finished step, while busy; None when idle."""
    error: str | None
    tokens_per_step: float | None = None
    """Tokens that a decoding stream got in a step, on average over the last 128 with one."""
    cost: StepCost = StepCost()
    """What a step costs by its parts, and how well that predicts."""
    forecast: ForecastView | None = None
    """None while nothing is known of the model."""


class UpstreamView(msgspec.Struct, frozen=True):
    """Another server that answers for some models."""

    name: str
    state: Literal["unused", "up", "failing", "down"]
    """`down` from the third failure in a row until it has answered again."""
    models: tuple[str, ...]
    governed: bool
    in_flight: int
    requests_total: int
    failures_total: int
    """Of those: not sent, not answered, answered with a 5xx status, or broken off."""
    failures_in_row: int
    last_failure: str
    """A sentence; empty when there was none."""
    heard_ago_s: float | None
    """Since it last answered; None before it did."""
    retry_in_s: float | None
    """While it is down: until it may be tried again."""


class Snapshot(msgspec.Struct, frozen=True):
    """Everything, at one moment."""

    sequence: int
    """Rises with every snapshot made."""
    time_s: float
    """Unix time."""
    monotonic_s: float
    """`time.monotonic()`: the console compares it with its own to know how old this is."""
    uptime_s: float
    state: ServerState
    host: str
    port: int
    version: str
    streams: tuple[StreamView, ...]
    """In flight first, in order of admission; then those finished less than 8 s ago."""
    admission: AdmissionView
    policy: PolicyView
    model: ModelView
    memory: MemoryView
    rates: RatesView
    engine: EngineView
    answers_strangers: bool = False
    """Other machines reach it and no key is asked for (server.allow_unauthenticated)."""
    upstreams: tuple[UpstreamView, ...] = ()
    """In the order of homebase.toml."""
