"""The sentences of refusals must not set off what agents look for in them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.admission.decide import RefusalCode, Refuse
from server.admission.wording import build_loading_refusal, build_refusal, explain_shortage
from server.memory_plan import MemoryPlan, StreamCost

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


@pytest.mark.parametrize(
    "code", ["in_flight_full", "memory_budget_full", "memory_too_small", "draining", "model_loading"]
)
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


@given(st.sampled_from(["memory_budget_full", "memory_too_small"]), *[st.integers(0, 2**47)] * 4)
def test_no_amount_of_memory_reads_like_a_status(
    code: RefusalCode, limit: int, used: int, needed: int, work: int
) -> None:
    message = build_refusal(Refuse(code, limit, used, needed, work), 7).message
    assert not re.search(r"(?<![\d,.])(429|50[0234]|524)(?!\d)", message), message


def test_full_memory_names_what_is_needed_and_free_and_kept_and_the_limit() -> None:
    refuse = Refuse("memory_budget_full", limit=24 * 2**30, used=23 * 2**30, needed=3 * 2**29, work=6 * 2**28)
    assert build_refusal(refuse, 9).message == (
        "Refused by homebase admission: this needs 1.5 GiB of memory, and 1.0 GiB of 24.0 GiB are free "
        "(engine.memory_budget_gib; 1.5 GiB of it are kept for a step's own work). Some is free again when a running "
        "completion ends, likely in about 9 s."
    )


def test_a_little_too_little_never_reads_like_enough() -> None:
    refuse = Refuse("memory_budget_full", limit=90 * 2**20, used=40 * 2**20, needed=50 * 2**20 + 1)
    message = build_refusal(refuse, 9).message
    assert "needs 50.1 MiB" in message
    assert "50.0 MiB of 90.0 MiB are free" in message


def test_a_budget_that_is_too_small_for_the_model_says_so_and_promises_nothing() -> None:
    small = Refuse("memory_too_small", limit=90 * 2**20, used=80 * 2**20, needed=16 * 2**20, work=32 * 2**20)
    refusal = build_refusal(small, None)
    assert refusal.message == (
        "Refused by homebase admission: this needs at least 16.0 MiB of memory, and the weights (48.0 MiB) and a "
        "step's own work (32.0 MiB) leave 10.0 MiB of 90.0 MiB (engine.memory_budget_gib). Raise that limit, or serve "
        "a smaller model."
    )
    assert refusal.retry_after_s is None


def test_the_operator_reads_the_same_numbers() -> None:
    plan = MemoryPlan(90 * 2**20, 48 * 2**20, StreamCost(2**23, 0))
    assert explain_shortage(plan) == (
        "A stream needs at least 16.0 MiB of memory, and the weights (48.0 MiB) and a step's own work (32.0 MiB) leave "
        "10.0 MiB of 90.0 MiB (engine.memory_budget_gib). Raise that limit, or serve a smaller model."
    )
    assert explain_shortage(MemoryPlan(96 * 2**20, 48 * 2**20, StreamCost(2**23, 0))) is None
    assert explain_shortage(MemoryPlan(0, 48 * 2**20, StreamCost(2**23, 0))) is None


def test_a_model_that_loads_has_a_code_of_its_own() -> None:
    refusal = build_loading_refusal()
    assert refusal.code == "model_loading"
    assert refusal.retry_after_s is not None
    assert 1 <= refusal.retry_after_s <= 60
