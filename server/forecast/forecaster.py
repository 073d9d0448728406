"""Owns what was measured of decoding, and answers what one more stream would do to all. Lives on the server loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from server.events import EngineEvent, StepCost, StepDone
from server.forecast.measured import MeasuredPoint, MeasuredSteps
from server.forecast.prior import Physics, list_depths
from server.forecast.rates import Basis, Forecast, StreamLoad, forecast_rates
from server.forecast.waits import forecast_ttft_s, read_load
from server.models.cache import ModelFacts
from server.policy import EnginePolicy
from server.snapshot import ForecastView, StreamView

USUAL_CONTEXT_TOKENS = 4096
"""Taken for the next stream's context where no stream tells what is usual: what an agent's first request has."""


def count_left(stream: StreamView) -> int:
    """Tokens that a stream may generate yet."""
    return max(0, stream.max_tokens - stream.completion_tokens)


class Expectation(msgspec.Struct, frozen=True):
    """What is to be expected if a request were admitted now."""

    lowest_tps: float
    """The lowest decode rate of any stream, the newcomer's with them, when it begins to decode and at its end."""
    basis: Basis
    """`measured` when both moments are like what was seen lately, else `estimate`."""
    rates_tps: tuple[float, ...] = ()
    """Of each stream in flight, in their order, and of the newcomer, when it begins to decode."""
    lowest_at_end_tps: float = 0.0
    """Once it has generated what is expected of it, and the others as much or to their own ends."""
    ttft_s: float | None = None
    """Until the newcomer's first token, with nothing of its prompt cached; None when nothing tells."""


class Known(msgspec.Struct, frozen=True):
    """Everything that a forecast rests on, at one moment."""

    physics: Physics
    points: tuple[MeasuredPoint, ...]
    cost: StepCost


class Forecaster:
    """Is told of every step, and of the model once it is loaded."""

    def __init__(self, read_engine: Callable[[], EnginePolicy], clock: Callable[[], float] = time.monotonic) -> None:
        self._read_engine, self._clock = read_engine, clock
        self._facts: ModelFacts | None = None
        self._measured, self._cost = MeasuredSteps(), StepCost()
        self._shown: tuple[tuple[object, ...], ForecastView | None] = ((), None)

    def model_loaded(self, facts: ModelFacts) -> None:
        """From now on there is something to forecast."""
        self._facts = facts

    def fold(self, events: Iterable[EngineEvent]) -> None:
        """Take in what one engine step did."""
        for event in events:
            if isinstance(event, StepDone):
                self._measured.add(event)
            elif isinstance(event, StepCost):
                self._cost = event

    def know(self, engine: EnginePolicy | None = None) -> Known:
        """What is known, under the policy in force or another one."""
        setting = (engine or self._read_engine()).mtp
        facts = self._facts
        if facts is None:
            return Known(Physics(), (), self._cost)
        depths = list_depths(setting, facts.has_mtp)
        physics = Physics(facts.reads, facts.bandwidth_bps, facts.timed, depths)
        return Known(physics, self._measured.points(self._clock()), self._cost)

    def expect(
        self,
        newcomer_prompt_tokens: int,
        newcomer_output_tokens: float,
        streams: Sequence[StreamView],
        expect_left: Callable[[StreamView], float] = count_left,
    ) -> Expectation | None:
        """What a newcomer would do to all; None while nothing is known of the model.

        Outputs are what they are likely to be: the newcomer's, and what `expect_left` says of each stream in flight.
        """
        known = self.know()
        if not known.physics.is_known:
            return None
        running = [stream for stream in streams if stream.phase != "finished"]
        begins = [*map(read_stream, running), StreamLoad(newcomer_prompt_tokens)]
        ends = [
            *(_grow(stream, min(newcomer_output_tokens, expect_left(stream))) for stream in running),
            StreamLoad(newcomer_prompt_tokens + round(newcomer_output_tokens)),
        ]
        first, last = (forecast_rates(known.physics, known.points, loads) for loads in (begins, ends))
        return Expectation(
            lowest_tps=min(first.lowest_tps, last.lowest_tps),
            basis="measured" if first.basis == last.basis == "measured" else "estimate",
            rates_tps=first.rates_tps,
            lowest_at_end_tps=last.lowest_tps,
            ttft_s=forecast_ttft_s(
                known.physics, known.cost, self._read_engine(), read_load(running), newcomer_prompt_tokens
            ),
        )

    def show_next(self, streams: Sequence[StreamView]) -> ForecastView | None:
        """For the snapshot: what one more stream of the mean context would get; made anew only when that changes."""
        running = [stream for stream in streams if stream.phase != "finished"]
        contexts = [read_stream(stream).context_tokens for stream in running or streams]
        context = round(sum(contexts) / len(contexts)) if contexts else USUAL_CONTEXT_TOKENS
        loads = [*map(read_stream, running), StreamLoad(context)]
        key = (self._facts is not None, self._measured.version, self._read_engine().mtp, *loads)
        if key != self._shown[0]:
            known = self.know()
            self._shown = key, _view(forecast_rates(known.physics, known.points, loads), context)
        return self._shown[1]


def read_stream(stream: StreamView) -> StreamLoad:
    """A stream as it decodes: with all of its prompt read."""
    return StreamLoad(max(stream.context_tokens, stream.prompt_tokens), stream.tokens_per_step)


def _grow(stream: StreamView, tokens: float) -> StreamLoad:
    """The same after so many tokens more."""
    load = read_stream(stream)
    return StreamLoad(load.context_tokens + round(tokens), load.tokens_per_step)


def _view(forecast: Forecast, context_tokens: int) -> ForecastView | None:
    if not forecast.rates_tps:
        return None
    return ForecastView(
        forecast.basis, len(forecast.rates_tps), context_tokens, forecast.rates_tps[-1], forecast.lowest_tps
    )
