"""What is said of drafting while a model is served."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from server.events import ModelStateChanged
from server.model_state import ModelState, describe_fetch
from server.models.cache import ModelFacts
from server.policy import AdmissionPolicy, EnginePolicy, Policy
from server.snapshot import FetchView

FACTS = ModelFacts("m", "/m", "qwen4_exp", 100, 4096, "float32", "", 1, 4, True, False)


def build_ready(has_mtp: bool) -> ModelState:
    state = ModelState("m", "/m", False, lambda notice: None)
    state.ready(msgspec.structs.replace(FACTS, has_mtp=has_mtp), cast("Any", object()), "cpu")
    return state


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("auto", "auto: as deep as pays, stream by stream"),
        ("off", "off: [engine] mtp is off"),
        (3, "3 deep: always, whatever it pays"),
    ],
)
def test_drafting_is_told_as_the_policy_has_it_now(setting: Any, words: str) -> None:
    state = build_ready(has_mtp=True)
    assert state.view(Policy(engine=EnginePolicy(mtp=setting))).mtp == words


def test_without_a_head_the_policy_changes_nothing() -> None:
    words = "none: the checkpoint has no multi-token-prediction head"
    assert build_ready(has_mtp=False).view(Policy(engine=EnginePolicy(mtp=2))).mtp == words


def test_a_budget_without_room_for_a_stream_is_told_and_leaves_no_context() -> None:
    state = ModelState("m", "/m", False, lambda notice: None)
    state.ready(msgspec.structs.replace(FACTS, weights_bytes=2**30, token_bytes=2**10), cast("Any", object()), "cpu")
    view = state.view(Policy(engine=EnginePolicy(memory_budget_gib=1.0)))
    assert (view.state, view.effective_context_limit_tokens) == ("ready", 0)
    assert "engine.memory_budget_gib" in view.detail
    enough = state.view(Policy(engine=EnginePolicy(memory_budget_gib=2.0)))
    assert (enough.effective_context_limit_tokens, enough.detail) == (4096, "")


def test_the_limit_that_lowers_the_context_is_named() -> None:
    state, budget = ModelState("m", "/m", False, lambda notice: None), EnginePolicy(memory_budget_gib=0.05)
    state.ready(msgspec.structs.replace(FACTS, token_bytes=20_000), cast("Any", object()), "cpu")
    most = state.plan_memory(Policy(engine=budget)).most_tokens
    assert most is not None
    assert 300 < most < 1000
    for policy, limit, key in (
        (Policy(), 4096, ""),
        (Policy(policy=AdmissionPolicy(max_context_tokens=4096)), 4096, ""),
        (Policy(policy=AdmissionPolicy(max_context_tokens=1000)), 1000, "policy.max_context_tokens"),
        (Policy(policy=AdmissionPolicy(max_context_tokens=1000), engine=budget), most, "engine.memory_budget_gib"),
        (Policy(policy=AdmissionPolicy(max_context_tokens=300), engine=budget), 300, "policy.max_context_tokens"),
    ):
        view = state.view(policy)
        assert (view.effective_context_limit_tokens, view.context_limit_set_by) == (limit, key)


def test_nothing_is_said_before_the_model_is_there() -> None:
    assert ModelState("m", "/m", False, lambda notice: None).view(Policy()).mtp == ""


@pytest.mark.parametrize(
    ("rate_bps", "eta_s", "words"),
    [
        (None, None, "fetching: 1.5 of 9.0 GB"),
        (0.0, None, "fetching: 1.5 of 9.0 GB"),
        (2.5e6, 3000.0, "fetching: 1.5 of 9.0 GB, 2.5 MB/s, 50 min left"),
        (1e9, 7.5, "fetching: 1.5 of 9.0 GB, 1000.0 MB/s, 8 s left"),
    ],
)
def test_a_fetch_is_told_in_words(rate_bps: float | None, eta_s: float | None, words: str) -> None:
    assert describe_fetch(FetchView(1_500_000_000, 9_000_000_000, rate_bps, eta_s)) == words
    assert describe_fetch(FetchView(1_500_000, 9_000_000, rate_bps, eta_s)) == words.replace("GB", "MB")


def test_a_fetch_is_announced_in_tenths_and_shown_at_every_step() -> None:
    told: list[ModelStateChanged] = []
    state = ModelState("m", "o/m", False, told.append)
    state.look()
    for done in range(0, 1001, 5):
        state.fetching(FetchView(done, 1000, None, None))
        shown = state.view(Policy()).fetch
        assert shown is not None
        assert shown.done_bytes == done
    assert len(told) == 1 + 11
    state.fail("no room")
    assert state.view(Policy()).fetch is None
