from __future__ import annotations

from server.upstreams.breaker import MOST_FAILURES, OPEN_S, TRIAL_S, Breaker


def open_breaker(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(MOST_FAILURES):
        assert breaker.try_now(now)
        breaker.fail(now)
    return breaker


def test_a_success_forgets_failures() -> None:
    breaker = Breaker()
    for _ in range(10):
        breaker.fail(0)
        breaker.fail(0)
        assert not breaker.is_open
        breaker.succeed()
    assert breaker.try_now(0)


def test_it_opens_for_ten_seconds_and_then_one_tries() -> None:
    breaker = open_breaker(100)
    assert not breaker.try_now(100 + OPEN_S - 0.1)
    assert breaker.left_s(100) == OPEN_S
    assert breaker.try_now(100 + OPEN_S)
    assert not breaker.try_now(100 + OPEN_S), "one only"
    breaker.fail(111)
    assert not breaker.try_now(112)
    assert breaker.try_now(111 + OPEN_S)
    breaker.succeed()
    assert breaker.try_now(122)
    assert breaker.try_now(122)


def test_a_trial_that_nobody_hears_of_again_is_none() -> None:
    breaker = open_breaker()
    assert breaker.try_now(OPEN_S)
    breaker.leave()
    assert breaker.try_now(OPEN_S)
    assert breaker.try_now(OPEN_S + TRIAL_S)
