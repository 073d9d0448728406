"""Which notices pop up, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from console.toasts import toast_for
from server.events import AnyNotice, LogLine, ModelStateChanged, PolicyChanged, PolicyProblem, StreamEnded
from server.policy import Policy
from server.policy_store import PolicyState

if TYPE_CHECKING:
    from tests.console.conftest import Samples


STATE = PolicyState(
    policy=Policy(), path="/etc/box.toml", exists=True, etag="", problem=None, origins={}, can_undo=False
)


def test_an_outside_edit_is_told_and_ones_own_is_not() -> None:
    change = (("policy.max_in_flight", "2", "1"),)
    toast = toast_for(PolicyChanged(time_s=0, origin="file", changes=change), STATE)
    assert toast is not None
    assert toast.text == "box.toml changed outside, in force: max_in_flight 2 → 1"
    assert toast_for(PolicyChanged(time_s=0, origin="console", changes=change), STATE) is None
    by_another = toast_for(PolicyChanged(time_s=0, origin="api", changes=change, by="alice"), STATE)
    assert by_another is not None
    assert "changed over HTTP by alice, in force: " in by_another.text


def test_a_broken_file_warns_and_its_repair_calms() -> None:
    broken = toast_for(PolicyProblem(time_s=0, message="line 3: \x1b no"), STATE)
    repaired = toast_for(PolicyProblem(time_s=0, message=""), STATE)
    assert broken is not None
    assert broken.severity == "warning"
    assert "\\x1b no" in broken.text
    assert repaired is not None
    assert repaired.severity == "information"


def test_a_file_that_is_gone_is_not_called_broken() -> None:
    gone: AnyNotice = PolicyProblem(time_s=0, message="box.toml is gone; its last limits stay in force.")
    toast = toast_for(gone, msgspec.structs.replace(STATE, exists=False))
    assert toast is not None
    assert toast.text == "box.toml is gone; its last limits stay in force."


def test_failures_are_errors_and_ordinary_life_is_silent(samples: Samples) -> None:
    failed = toast_for(ModelStateChanged(time_s=0, state="failed", detail="no tensors"), STATE)
    assert failed is not None
    assert failed.severity == "error"
    ended = StreamEnded(
        time_s=0,
        request_id="s-1",
        outcome="failed",
        detail="boom",
        session="x",
        lane="parent",
        client="c",
        prompt_tokens=1,
        completion_tokens=1,
        ttft_s=None,
        age_s=1.0,
    )
    toast = toast_for(ended, STATE)
    assert toast is not None
    assert toast.text == "Stream s-1 of c failed: boom"
    assert toast_for(samples.refused(), STATE) is None
    assert toast_for(LogLine(time_s=0, level="error", source="x", message="y"), STATE) is None
