from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.admission.cascade import RETURN_S, SESSIONS_KEPT, Cascade
from server.admission.place import Place
from server.events import Lane
from server.snapshot import StreamView


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Rig:
    """A cascade whose two seconds pass when they are told to."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.cancelled: list[str] = []
        self.timers: list[Timer] = []
        self.is_on = True
        self.cascade = Cascade(self.places.items, self.cancelled.append, lambda: self.is_on, self._call_later)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        assert delay_s == RETURN_S
        self.timers.append(Timer(call))
        return self.timers[-1]

    def start(self, request_id: str, session: str, parent: str | None = None, lane: Lane | None = None) -> None:
        lane = lane or ("child" if parent else "parent")
        self.places[request_id] = Place(session, parent, int(bool(parent)), lane, "c", "")
        self.cascade.came(self.places[request_id])

    def end(self, request_id: str, outcome: Any = "cancelled", *, leaves: bool = True) -> None:
        place = self.places[request_id]
        self.cascade.ended(view(request_id, place, outcome))
        if leaves:
            del self.places[request_id]

    def pass_time(self) -> list[str]:
        for timer in self.timers:
            if timer.call is not None:
                timer.call()
        self.timers.clear()
        return self.cancelled


def view(request_id: str, place: Place, outcome: Any) -> StreamView:
    return StreamView(
        request_id, place.session, place.parent_session, place.lane, "c", "m", "finished", 0, 0, 0, 0, 0, 0, 0, None,
        None, None, 0.0, 0.0, True, (), outcome=outcome,
    )  # fmt: skip


@pytest.fixture(name="family")
def family_fixture() -> Rig:
    rig = Rig()
    rig.start("p1", "p")
    rig.start("a1", "a", "p")
    rig.start("b1", "b", "a")
    rig.start("other", "q")
    rig.start("others", "r", "q")
    return rig


def test_children_and_grandchildren_of_a_parent_that_is_gone_are_cancelled(family: Rig) -> None:
    family.end("p1")
    assert family.cancelled == [], "not at once"
    assert family.pass_time() == ["a1", "b1"]


def test_a_grandchild_is_found_though_its_own_parent_is_idle(family: Rig) -> None:
    family.end("a1", "stop")
    family.end("p1")
    assert family.pass_time() == ["b1"]


@pytest.mark.parametrize("outcome", ["stop", "length", "failed"])
def test_an_end_of_another_kind_cancels_nobody(family: Rig, outcome: str) -> None:
    family.end("p1", outcome)
    assert family.pass_time() == []


def test_a_parent_that_is_back_keeps_its_children(family: Rig) -> None:
    family.end("p1")
    family.start("p2", "p")
    family.end("p2", "stop")
    assert family.pass_time() == []


def test_a_title_is_no_return_and_its_end_is_no_turns_end(family: Rig) -> None:
    family.start("t1", "p", lane="auxiliary")
    family.end("t1")
    assert family.pass_time() == []
    family.end("p1")
    family.start("t2", "p", lane="auxiliary")
    assert family.pass_time() == ["a1", "b1"]


def test_what_the_engine_still_holds_of_the_cut_stream_is_no_return(family: Rig) -> None:
    family.end("p1", leaves=False)
    assert family.pass_time() == ["a1", "b1"]


def test_a_second_stream_of_the_parent_that_goes_on_keeps_the_children(family: Rig) -> None:
    family.start("p2", "p")
    family.end("p1")
    assert family.pass_time() == []
    family.end("p2")
    assert family.pass_time() == ["a1", "b1"]


def test_the_switch_is_asked_when_the_time_is_up(family: Rig) -> None:
    family.end("p1")
    family.is_on = False
    assert family.pass_time() == []


def test_sessions_that_name_each_other_as_parents_end_nothing_else() -> None:
    rig = Rig()
    rig.start("x1", "x", "y")
    rig.start("y1", "y", "x")
    rig.start("z1", "z", "y")
    rig.start("w1", "w")
    rig.end("w1")
    assert rig.pass_time() == []


def test_what_is_remembered_of_children_is_bounded() -> None:
    rig = Rig()
    for number in range(SESSIONS_KEPT + 10):
        rig.start(f"r{number}", f"s{number}", "p")
    assert len(rig.cascade._parents) == SESSIONS_KEPT  # pyright: ignore[reportPrivateUsage]
