from __future__ import annotations

import pytest

from server.errors import UpstreamUnavailable
from server.policy import UpstreamPolicy
from server.upstreams.health import IN_USE_S, LOOK_S, Health

FAR = UpstreamPolicy(name="far-away", base_url="http://h/v1")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def well() -> str:
    return ""


async def ill() -> str:
    return "It answered with status 500."


def test_it_is_watched_while_it_is_in_use_or_failing() -> None:
    clock = Clock()
    health = Health(clock)
    assert not health.is_watched
    health.begin(FAR)
    assert health.is_watched
    health.heard()
    health.end()
    assert health.next_look_s == LOOK_S
    clock.now_s += IN_USE_S + 1
    assert not health.is_watched
    health.failed("x.")
    clock.now_s += 10_000
    assert health.is_watched


async def test_a_look_that_goes_well_brings_it_back() -> None:
    clock = Clock()
    health = Health(clock)
    for _ in range(3):
        await health.look(ill)
    assert health.view(FAR).state == "down"
    with pytest.raises(UpstreamUnavailable) as caught:
        health.begin(FAR)
    assert "failed 3 times in a row" in caught.value.message
    assert "It is tried again in about 10 s." in caught.value.message
    await health.look(well)
    assert health.view(FAR).state == "down", "nobody looks while it is left alone"
    clock.now_s += 10
    await health.look(well)
    view = health.view(FAR)
    assert (view.state, view.failures_in_row, view.requests_total, view.failures_total) == ("up", 0, 1, 1)
    health.begin(FAR)


def test_a_client_that_leaves_says_nothing_of_the_upstream() -> None:
    clock = Clock()
    health = Health(clock)
    for _ in range(3):
        health.begin(FAR)
        health.failed("x.")
        health.end()
    clock.now_s += 10
    health.begin(FAR)
    health.left()
    health.end()
    health.begin(FAR)
    assert health.in_flight == 1
