"""What is said of drafting while a model is served."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from server.model_state import ModelState
from server.models.cache import ModelFacts
from server.policy import EnginePolicy, Policy

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


def test_nothing_is_said_before_the_model_is_there() -> None:
    assert ModelState("m", "/m", False, lambda notice: None).view(Policy()).mtp == ""
