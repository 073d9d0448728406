"""What an edited policy would mean: decode rates, waits and memory for any number of streams, and who gets in. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.engine.scheduler import Need
from server.forecast.arrivals import Arrival
from server.forecast.forecaster import Known
from server.forecast.rates import Basis, StreamLoad, forecast_rates
from server.forecast.replay import Replay, replay
from server.forecast.waits import PrefillLoad, forecast_ttft_s
from server.memory_plan import MemoryPlan
from server.models.cache import ModelFacts
from server.policy import Policy


class Situation(msgspec.Struct, frozen=True):
    """What is to be imagined."""

    streams: int
    """That decode at once, the newest with them."""
    context_tokens: int
    """Of each."""
    prompt_tokens: int
    """Of the newest, none of it cached."""


class MemoryOutlook(msgspec.Struct, frozen=True):
    """Memory in bytes."""

    budget_bytes: int
    """0 when nothing limits it."""
    model_bytes: int
    room_bytes: int
    """What is left for contexts."""
    streams_bytes: int
    """What the imagined streams take at most."""
    worst_bytes: int
    """What max_in_flight streams take, each as long as one may become."""
    most_streams: int | None
    """So many of the longest fit; None when nothing limits them."""
    stream_limit_tokens: int
    """The longest that one stream may become."""
    fits: bool
    """Whether the imagined streams have room."""


class WhatIf(msgspec.Struct, frozen=True):
    """What would be."""

    streams: int
    context_tokens: int
    prompt_tokens: int
    decode_tps: float | None
    """Of each stream; None while nothing is known of the model."""
    together_tps: float | None
    basis: Basis
    ttft_s: float | None
    """Until the newest one's first token, while the others decode; None when nothing tells."""
    keeps_floor: bool
    """Whether that is at least policy.min_decode_tps, or there is no such floor or only one stream."""
    memory: MemoryOutlook
    replay: Replay | None
    """How those who came lately would have fared; None when nobody came."""


def forecast_what_if(
    policy: Policy, situation: Situation, known: Known, facts: ModelFacts, arrivals: Sequence[Arrival] = ()
) -> WhatIf:
    """The whole answer. `known` has to be of this policy's engine table."""
    loads = [StreamLoad(situation.context_tokens)] * situation.streams
    forecast = forecast_rates(known.physics, known.points, loads)
    rate = forecast.rates_tps[0] if forecast.rates_tps else None
    plan = facts.plan_memory(policy.engine.memory_budget_gib)
    others = tuple(
        Need(str(number), 0, 0, context_tokens=situation.context_tokens) for number in range(situation.streams - 1)
    )
    floor = policy.policy.min_decode_tps
    return WhatIf(
        streams=situation.streams,
        context_tokens=situation.context_tokens,
        prompt_tokens=situation.prompt_tokens,
        decode_tps=rate,
        together_tps=None if rate is None else rate * situation.streams,
        basis=forecast.basis,
        ttft_s=forecast_ttft_s(known.physics, known.cost, policy.engine, PrefillLoad(others), situation.prompt_tokens),
        keeps_floor=situation.streams == 1 or rate is None or rate >= floor,
        memory=look_at_memory(policy, situation, facts, plan),
        replay=replay(policy.policy, plan, arrivals) if arrivals else None,
    )


def look_at_memory(policy: Policy, situation: Situation, facts: ModelFacts, plan: MemoryPlan) -> MemoryOutlook:
    """What contexts take, of what there is."""
    limits = (facts.context_limit_tokens, policy.policy.max_context_tokens or None, plan.most_tokens)
    longest = min(limit for limit in limits if limit is not None)
    each = plan.stream.at(longest)
    streams_bytes = situation.streams * plan.stream.at(situation.context_tokens)
    return MemoryOutlook(
        budget_bytes=plan.budget_bytes,
        model_bytes=plan.model_bytes,
        room_bytes=plan.room_bytes,
        streams_bytes=streams_bytes,
        worst_bytes=policy.policy.max_in_flight * each,
        most_streams=plan.room_bytes // each if plan.budget_bytes and each else None,
        stream_limit_tokens=longest,
        fits=not plan.budget_bytes or streams_bytes <= plan.room_bytes,
    )
