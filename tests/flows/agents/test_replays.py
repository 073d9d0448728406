"""What each family's agents meet at the limits as shipped: two in flight, one child, children of parents only."""

from __future__ import annotations

import json
import time
from typing import Any

from server.admission.cascade import RETURN_S

MARGIN_S = 1.0
"""After a cascade's time; that it happens later than this would be a fault."""


def check_refused(agents: Any, turn: Any, code: str, *, passes: bool = True) -> str:
    """That it was refused as its family wants it, and was sent no stream; gives the sentence.

    `passes` is False for what no waiting mends.
    """
    text = turn.finish()
    assert turn.status == (agents.family.refusal_status if passes else 400), text
    error = json.loads(text)["error"]
    assert turn.headers["content-type"] == "application/json"
    assert turn.headers["x-should-retry"] == "false"
    assert ("retry-after" in turn.headers) == (passes and turn.status == 429)
    told = {refusal["request_id"]: refusal for refusal in agents.server.snapshot()["admission"]["recent_refusals"]}
    assert told[turn.request_id]["code"] == code
    assert (error["details"]["error_code"] if "details" in error else error["code"]) == code
    return error["message"]


def test_one_child_beside_its_parent_and_no_second_and_none_of_its_own(agents: Any) -> None:
    root = agents.begin()
    first, second = agents.spawn(root), agents.spawn(root)
    below = agents.spawn(first)
    parent, child = agents.open(root), agents.open(first)
    rows = agents.row(parent), agents.row(child)
    assert [row["lane"] for row in rows] == ["parent" if agents.family.is_known else "unknown", "child"]
    assert [row["depth"] for row in rows] == [0, 1]
    assert rows[1]["parent_session"] == rows[0]["session"]
    said = check_refused(agents, agents.ask(second), "child_lane_full")
    assert "policy.subagents.max_concurrent = 1" in said
    said = check_refused(agents, agents.ask(below), "depth_exceeded", passes=False)
    assert "policy.subagents.max_depth = 1" in said
    assert not parent.ended.is_set()
    assert not child.ended.is_set()
    assert agents.server.snapshot()["admission"]["in_flight"] == 2


def test_a_title_beside_a_full_house_waits_and_then_runs(agents: Any) -> None:
    root = agents.begin()
    parent, other = agents.open(root), agents.open(agents.begin())
    title = agents.ask_title(root)
    if not agents.family.is_known:
        check_refused(agents, title, "in_flight_full")  # who names no session may be anybody
        return
    (row,) = agents.server.wait_until("the title waits", agents.list_waiting)
    assert (row["lane"], row["session"], row["queue_position"]) == ("auxiliary", agents.row(parent)["session"], 1)
    assert not title.ended.is_set()
    other.hang_up()
    title.finish()
    assert title.status == 200, title.text
    assert agents.row(title)["outcome"] in ("stop", "length")
    assert not parent.ended.is_set()


def test_a_child_ends_with_a_parent_that_hangs_up(agents: Any) -> None:
    root = agents.begin()
    first = agents.spawn(root)
    parent, child = agents.open(root), agents.open(first)
    parent.hang_up()
    left_s = time.monotonic()
    assert child.ended.wait(RETURN_S + 10 * MARGIN_S)
    assert time.monotonic() - left_s > RETURN_S / 2, "the parent had time to come back"
    assert "cancelled with its parent" in child.text
    assert agents.row(child)["outcome_detail"].startswith("cancelled with its parent")
    agents.wait_idle()


def test_a_child_lives_on_when_its_parents_turn_is_complete(agents: Any) -> None:
    root = agents.begin()
    first = agents.spawn(root)
    child = agents.open(first)
    turn = agents.ask(root, max_tokens=16)
    turn.finish()
    assert turn.status == 200, turn.text
    assert agents.row(turn)["outcome"] in ("stop", "length")
    over_s = time.monotonic() + RETURN_S + MARGIN_S
    agents.server.wait_until("a cascade's time is over", lambda: time.monotonic() > over_s)
    assert not child.ended.is_set(), child.text[-500:]
    assert agents.row(child)["phase"] == "decode"


def test_a_third_that_nobody_started_is_refused_whoever_asks(agents: Any) -> None:
    agents.open(agents.begin())
    agents.open(agents.begin())
    said = check_refused(agents, agents.ask(agents.begin()), "in_flight_full")
    assert "2 of 2 in flight (policy.max_in_flight = 2)" in said
    assert agents.server.snapshot()["admission"]["in_flight"] == 2
