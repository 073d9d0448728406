"""The sentences of refusals must not set off what agents look for in them."""

from __future__ import annotations

import re

import pytest

from server.admission.decide import RefusalCode, Refuse
from server.admission.wording import build_loading_refusal, build_refusal

TRAPS = (
    r"429|500|502|503|504|524",
    r"rate.?limit|too many requests",
    r"overloaded|service.?unavailable|server.?error|internal.?error",
    r"try again later|at capacity",
    r"terminated",
    r"(request|connection|read)?.?time.?d?.?out",
    r"resource.?exhausted",
    r"prompt is too long|maximum context length|context",
)


@pytest.mark.parametrize("code", ["in_flight_full", "memory_budget_full", "draining", "model_loading"])
@pytest.mark.parametrize("used", [0, 1, 2, 64])
def test_no_sentence_has_a_word_that_agents_retry_on(code: RefusalCode, used: int) -> None:
    for retry_after_s in range(1, 61):
        message = build_refusal(Refuse(code, limit=used, used=used), retry_after_s).message
        for trap in TRAPS:
            assert not re.search(trap, message, re.IGNORECASE), (trap, message)


def test_a_full_house_names_who_refused_the_use_the_limit_and_what_ends_it() -> None:
    refusal = build_refusal(Refuse("in_flight_full", limit=2, used=2), 7)
    assert refusal.message == (
        "Refused by homebase admission: 2 of 2 in flight (policy.max_in_flight = 2). A place is free again when a "
        "running completion ends, likely in about 7 s."
    )
    assert (refusal.code, refusal.limit, refusal.used, refusal.retry_after_s) == ("in_flight_full", 2, 2, 7)


def test_full_memory_names_what_is_needed_and_free_and_the_limit() -> None:
    refusal = build_refusal(Refuse("memory_budget_full", limit=24 * 2**30, used=23 * 2**30, needed=3 * 2**29), 9)
    assert refusal.message == (
        "Refused by homebase admission: this needs 1.5 GiB of memory, and 1.0 GiB of 24.0 GiB are free "
        "(engine.memory_budget_gib). Some is free again when a running completion ends, likely in about 9 s."
    )


def test_a_budget_that_is_too_small_for_the_model_says_so() -> None:
    full = Refuse("memory_budget_full", limit=2**20, used=24 * 2**20, needed=2**24, is_alone=True)
    assert build_refusal(full, 5).message == (
        "Refused by homebase admission: this needs 16.0 MiB of memory, and the weights leave 0.0 MiB of 1.0 MiB "
        "(engine.memory_budget_gib). Raise that limit, or serve a smaller model."
    )


def test_a_model_that_loads_has_a_code_of_its_own() -> None:
    refusal = build_loading_refusal()
    assert refusal.code == "model_loading"
    assert 1 <= refusal.retry_after_s <= 60
