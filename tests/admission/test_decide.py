from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.admission.decide import Admit, Asked, Load, Refuse, decide
from server.events import Lane
from server.policy import AdmissionPolicy

ASKED = Asked("unknown", 10, None)


@pytest.mark.parametrize(
    ("max_in_flight", "load", "decision"),
    [
        (2, Load(0), Admit()),
        (2, Load(1), Admit()),
        (2, Load(2), Refuse("in_flight_full", 2, 2)),
        (1, Load(2), Refuse("in_flight_full", 1, 2)),
        (2, Load(0, draining=True), Refuse("draining", 0, 0)),
        (2, Load(5, draining=True), Refuse("draining", 0, 5)),
    ],
)
def test_the_limit_and_draining_decide(max_in_flight: int, load: Load, decision: Admit | Refuse) -> None:
    assert decide(AdmissionPolicy(max_in_flight=max_in_flight), load, ASKED) == decision


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(0, 100), st.sampled_from(["parent", "child", "auxiliary", "unknown"]))
def test_never_refused_while_the_limit_is_free_and_never_admitted_above_it(limit: int, used: int, lane: Lane) -> None:
    decision = decide(AdmissionPolicy(max_in_flight=limit), Load(used), Asked(lane, 1, 1))
    assert isinstance(decision, Admit) == (used < limit)
