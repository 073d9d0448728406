"""Streams that an upstream answers: shown like our own, and no part of the engine."""

from __future__ import annotations

import msgspec
import pytest

from server.events import EventRing
from server.snapshot import StreamView
from server.telemetry import StreamIdentity, Telemetry


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A telemetry with one such stream."""

    def __init__(self, **identity: object) -> None:
        self.clock = Clock()
        self.telemetry = Telemetry(EventRing(), self.clock)
        told = StreamIdentity("s", None, "parent", "c", "far", 40, 0, 50, 0, True, 0.0, upstream="far-away")
        self.telemetry.stream_opened("r", msgspec.structs.replace(told, governed=bool(identity.get("governed"))))

    def say(self, tokens: int = 1, seconds: float = 0.1) -> None:
        self.clock.now += seconds
        self.telemetry.upstream_said("r", tokens)

    @property
    def stream(self) -> StreamView:
        return self.telemetry.streams()[0]


def test_events_count_as_tokens_until_the_usage_is_told() -> None:
    bench = Bench()
    assert (bench.stream.phase, bench.stream.ttft_s) == ("waiting", None)
    bench.say(0, 0.5)
    assert bench.stream.phase == "waiting", "a role alone is no token"
    for _ in range(21):
        bench.say()
    assert (bench.stream.phase, bench.stream.completion_tokens) == ("decode", 21)
    assert bench.stream.ttft_s == pytest.approx(0.6)
    assert bench.stream.decode_tps == pytest.approx(10)
    bench.telemetry.upstream_told("r", 30, 63, 10)
    told = bench.stream
    assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens) == (30, 63, 10)
    assert told.context_tokens == 93
    assert told.decode_tps == pytest.approx(30), "of three tokens an event"
    bench.telemetry.stream_ended("r", "stop")
    assert bench.stream.decode_tps == pytest.approx(30)


def test_what_is_not_told_stays_as_it_was_counted() -> None:
    bench = Bench()
    bench.say(4)
    bench.telemetry.upstream_told("r", None, None, None)
    assert (bench.stream.prompt_tokens, bench.stream.completion_tokens) == (40, 4)
    bench.telemetry.upstream_told("nobody", 1, 1, 1)
    bench.telemetry.upstream_said("nobody", 1)


def test_the_engine_has_nothing_to_do_with_it() -> None:
    bench = Bench()
    bench.clock.now += 1000
    assert bench.telemetry.step_age_s is None


@pytest.mark.parametrize("governed", [True, False])
def test_it_has_a_slot_only_where_it_is_governed(governed: bool) -> None:
    assert Bench(governed=governed).stream.has_slot is governed
