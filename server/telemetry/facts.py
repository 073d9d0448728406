"""What telemetry is told: of the server as a whole, and of each stream when it is admitted."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from server.events import Lane
from server.snapshot import ForecastView, LinePlace, ModelView, PolicyView, ServerState, UpstreamView


class ServerFacts(msgspec.Struct, frozen=True):
    """What a snapshot holds and telemetry cannot know."""

    state: ServerState
    host: str
    port: int
    version: str
    in_flight: int
    max_in_flight: int
    peak_in_flight: int
    admitted_total: int
    policy: PolicyView
    model: ModelView
    engine_alive: bool
    engine_error: str | None
    resident_bytes: int
    machine_bytes: int
    memory_budget_bytes: int = 0
    promised_bytes: int = 0
    answers_strangers: bool = False
    memory_is_full: bool = False
    line: Mapping[str, LinePlace] = {}
    """Where each request stands that waits for a slot, by its id."""
    forecast: ForecastView | None = None
    upstreams: tuple[UpstreamView, ...] = ()


class StreamIdentity(msgspec.Struct, frozen=True):
    """What is known of a stream when it is admitted."""

    session: str
    parent_session: str | None
    lane: Lane
    client: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    context_limit_tokens: int
    streaming: bool
    arrived_s: float
    """Unix time."""
    key: str = ""
    depth: int = 0
    family: str = ""
    upstream: str = ""
    governed: bool = False
