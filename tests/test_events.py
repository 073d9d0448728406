"""The ring of notices: who listens is told at once, and until he leaves."""

from __future__ import annotations

from server.events import AnyNotice, EventRing, PolicyProblem


def test_all_who_listen_are_told_until_they_leave() -> None:
    ring, first, second = EventRing(), list[AnyNotice](), list[AnyNotice]()
    leave_first = ring.subscribe(first.append)
    ring.subscribe(second.append)
    notices = [PolicyProblem(float(number), "x") for number in range(3)]
    ring.publish(notices[0])
    leave_first()
    leave_first()
    ring.publish(notices[1])
    assert (first, second) == (notices[:1], notices[:2])
    assert [entry.notice for entry in ring.after(0)] == notices[:2]


def test_a_listener_may_publish_what_the_first_notice_makes_it_say() -> None:
    ring, told = EventRing(), list[float]()

    def answer(notice: AnyNotice) -> None:
        told.append(notice.time_s)
        if notice.time_s == 1.0:
            ring.publish(PolicyProblem(2.0, "y"))

    ring.subscribe(answer)
    ring.publish(PolicyProblem(1.0, "x"))
    assert told == [1.0, 2.0]
