"""The sentences of refusals must not set off what agents look for in them."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import RefusalCode, Refuse
from server.admission.wording import avoid_statuses, build_loading_refusal, build_refusal, explain_shortage
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


KEYS: dict[RefusalCode, tuple[str, ...]] = {
    "in_flight_full": ("policy.max_in_flight", "policy.clients.agent-500.max_in_flight", "policy.queue_limit"),
    "child_lane_full": (
        "policy.subagents.max_concurrent",
        "policy.subagents.sampling_limit",
        "policy.max_in_flight",
        "policy.clients.agent-500.max_concurrent",
    ),
    "depth_exceeded": ("policy.subagents.max_depth", "policy.clients.context.max_depth"),
    "context_budget_full": ("policy.context_budget_tokens",),
    "decode_floor": ("policy.min_decode_tps",),
    "memory_budget_full": ("engine.memory_budget_gib",),
    "memory_too_small": ("engine.memory_budget_gib",),
    "draining": ("",),
    "model_loading": ("",),
}
"""Every code, with each limit that may say no by it."""

SENTENCES = [(code, key) for code in get_args(RefusalCode) for key in KEYS[code]]


@pytest.mark.parametrize(("code", "key"), SENTENCES)
@pytest.mark.parametrize("used", [0, 1, 2, 64, 429, 500, 502, 503, 504, 524, 12_500, 262_144, 524_288])
def test_no_sentence_has_a_word_or_number_that_agents_retry_on(code: RefusalCode, key: str, used: int) -> None:
    refuse = Refuse(code, limit=used, used=used, needed=used, in_flight=used, key=key)
    for retry_after_s in (None, *range(1, 61)):
        for waited_s in (None, 429.4):
            message = build_refusal(refuse, retry_after_s, waited_s=waited_s).message
            for trap in TRAPS:
                assert not re.search(trap, message, re.IGNORECASE), (trap, message)


@settings(deadline=None)
@given(st.sampled_from(SENTENCES), *[st.integers(0, 2**30)] * 3, st.floats(0, 10_000))
def test_no_number_reads_like_a_status(
    sentence: tuple[RefusalCode, str], limit: int, used: int, needed: int, rate: float
) -> None:
    code, key = sentence
    refuse = Refuse(code, limit=rate if code == "decode_floor" else limit, used=used, needed=needed, key=key)
    message = build_refusal(refuse, 7).message
    assert not re.search(TRAPS[0], message), message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2 of 64", "2 of 64"),
        ("500 and 429.5", "5 hundred and 4 hundred 29.5"),
        ("1500", "1 thousand 5 hundred"),
        ("12,500 of 131,072", "12 thousand 5 hundred of 131,072"),
        ("524,288", "5 hundred 24 thousand 288"),
        ("503,000,000", "5 hundred 3 million"),
        ("15,024", "15,024"),
    ],
)
def test_a_number_that_holds_a_status_is_told_exactly_and_partly_in_words(text: str, told: str) -> None:
    assert avoid_statuses(text) == told


@pytest.mark.parametrize(
    ("refuse", "retry_after_s", "told"),
    [
        (
            Refuse("child_lane_full", 1, 1, key="policy.subagents.max_concurrent"),
            9,
            "1 of 1 children of this parent in flight (policy.subagents.max_concurrent = 1). Do not start another: do "
            "its work in the parent, or wait for the running child. A place is free again when one of them ends, "
            "likely in about 9 s.",
        ),
        (
            Refuse("child_lane_full", 2, 1, key="policy.max_in_flight"),
            9,
            "1 of 2 in flight (policy.max_in_flight = 2), and the last place is kept for this child's parent, which is "
            "not in flight now. A child has a place when a running completion ends, likely in about 9 s.",
        ),
        (
            Refuse("child_lane_full", 0, 0, key="policy.clients.codex.max_concurrent"),
            None,
            "no children are taken here (policy.clients, max_concurrent = 0). This holds for good: do the work in the "
            "parent agent.",
        ),
        (
            Refuse("depth_exceeded", 1, 2, key="policy.subagents.max_depth"),
            None,
            "a child at depth 2 is deeper than agents may start children here (policy.subagents.max_depth = 1). This "
            "holds for good: do the work in the agent above it.",
        ),
        (
            Refuse("context_budget_full", 100_000, 90_000, 14_096, key="policy.context_budget_tokens"),
            9,
            "prompt and output may come to 14,096 tokens, and 10,000 of 100,000 are free in the policy's budget of "
            "tokens for all streams together. Some are free again when a running completion ends, likely in about 9 s.",
        ),
        (
            Refuse("decode_floor", 30.0, 21.26, key="policy.min_decode_tps", basis="measured"),
            9,
            "with one more stream the slowest would decode at 21.3 tok/s (as measured here), and at least 30 are "
            "wanted (policy.min_decode_tps). There is room again when a running completion ends, likely in about 9 s.",
        ),
        (
            Refuse("in_flight_full", 1, 1, key="policy.clients.codex.max_in_flight"),
            9,
            "1 of 1 of this client's in flight (policy.clients, max_in_flight = 1). A place is free again when one of "
            "them ends, likely in about 9 s.",
        ),
    ],
)
def test_each_refusal_says_the_limit_its_use_and_what_ends_it(
    refuse: Refuse, retry_after_s: int | None, told: str
) -> None:
    refusal = build_refusal(refuse, retry_after_s)
    assert refusal.message == f"Refused by homebase admission: {told}"
    assert (refusal.key, refusal.retry_after_s) == (refuse.key, retry_after_s)


def test_a_full_house_names_who_refused_the_use_the_limit_and_what_ends_it() -> None:
    refusal = build_refusal(Refuse("in_flight_full", limit=2, used=2, key="policy.max_in_flight"), 7)
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
