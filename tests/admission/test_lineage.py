from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.admission.lineage import IDLE_KEPT_S, Lineage, Spent
from server.admission.place import Place
from server.admission.sessions import BodyFacts, Identity, identify
from server.snapshot import SessionView

FACTS = BodyFacts("You are helpful.", "Write a parser.", "", "127.0.0.1")
PROMPT = "Find every place where the parser loses a token."


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lineage(clock: Clock) -> Lineage:
    return Lineage(clock=clock, wall=lambda: clock.now_s + 1_000_000)


def who(session: str = "", parent: str = "", said: str = "Write a parser.", key: str = "", **headers: str) -> Identity:
    """Somebody with our headers, with these, or with none."""
    ours = {"x-homebase-session": session, "x-homebase-parent-session": parent}
    sent = {name.replace("_", "-"): value for name, value in headers.items()} | {k: v for k, v in ours.items() if v}
    return identify(sent, msgspec.structs.replace(FACTS, first_user_text=said, key_name=key))


def ask(lineage: Lineage, identity: Identity, request_id: str = "", said: str = "", has_tools: bool = True) -> Place:
    """One request that is admitted, and over at once unless it is given an id."""
    place = lineage.place(identity, [said], has_tools)
    lineage.arrived(place)
    lineage.started(request_id or "r", place)
    lineage.left(place)
    if not request_id:
        lineage.ended("r", "stop", Spent())
    return place


def view(lineage: Lineage, session: str) -> SessionView:
    (found,) = (one for one in lineage.sessions() if one.session == session)
    return found


def test_headers_tell_parent_child_and_grandchild(lineage: Lineage) -> None:
    places = [ask(lineage, who(*names)) for names in (("p",), ("c", "p"), ("g", "c"))]
    assert [(place.parent_session, place.depth, place.lane) for place in places] == [
        (None, 0, "parent"),
        ("p", 1, "child"),
        ("c", 2, "child"),
    ]
    assert [view(lineage, name).root_session for name in "pcg"] == ["p", "p", "p"]
    assert [view(lineage, name).children for name in "pcg"] == [("c",), ("g",), ()]


def test_a_parent_that_was_never_seen_counts_as_none_itself(lineage: Lineage) -> None:
    place = ask(lineage, who("c", "p"))
    assert (place.parent_session, place.depth, place.lane) == ("p", 1, "child")
    assert ask(lineage, who(thread_id="t", x_openai_subagent="review")).depth == 1


def test_a_prompt_that_a_session_handed_out_makes_a_child_of_who_says_it(lineage: Lineage) -> None:
    parent = who(said="Do it all.")
    assert ask(lineage, parent).lane == "unknown"
    lineage.spawned(parent, [PROMPT])
    child = who(said=PROMPT)
    place = ask(lineage, child, said=f"{PROMPT}\n")
    assert (place.parent_session, place.depth, place.lane) == (parent.session, 1, "child")
    lineage.spawned(child, ["Read the third file of the list, and no other."])
    grandchild = ask(lineage, who(said="x"), said="Read the third file of the list, and no other.")
    assert (grandchild.parent_session, grandchild.depth) == (child.session, 2)
    assert view(lineage, grandchild.session).root_session == parent.session


def test_a_child_stays_one_whatever_its_later_requests_say(lineage: Lineage, clock: Clock) -> None:
    parent, child = who(said="Do it all."), who(said=PROMPT)
    lineage.spawned(parent, [PROMPT])
    first = ask(lineage, child, said=PROMPT)
    clock.now_s += 7200  # the prompt itself is forgotten by now
    assert ask(lineage, child, said="compacted") == first
    assert ask(lineage, who("c", "p")) == ask(lineage, who("c"))


def test_of_two_requests_of_a_session_at_once_the_one_that_knows_more_counts(lineage: Lineage) -> None:
    early, late = lineage.place(who("c")), lineage.place(who("c", "p"))
    for place in (early, late):
        lineage.arrived(place)
    lineage.started("late", late)
    lineage.started("early", early)
    assert (view(lineage, "c").parent_session, view(lineage, "c").lane) == ("p", "child")


def test_who_names_parents_by_a_header_is_not_matched_by_prompts(lineage: Lineage) -> None:
    lineage.spawned(who("p"), [PROMPT])
    assert ask(lineage, who(x_session_id="o"), said=PROMPT).lane == "parent"
    assert ask(lineage, who("h"), said=PROMPT).lane == "parent"
    grok = ask(lineage, who(x_grok_session_id="g"), said=PROMPT)
    assert (grok.parent_session, grok.lane, grok.family) == ("p", "child", "grok")


def test_a_session_that_was_seen_before_is_nobodys_new_child(lineage: Lineage) -> None:
    other = who(said="Hello.")
    ask(lineage, other, said="Hello.")
    lineage.spawned(who("p"), [PROMPT])
    assert ask(lineage, other, said=PROMPT).lane == "unknown"


def test_two_keys_never_share_sessions_nor_children(lineage: Lineage) -> None:
    lineage.spawned(who("p", key="alice"), [PROMPT])
    assert ask(lineage, who(key="bob", said=PROMPT), said=PROMPT).lane == "unknown"
    place = ask(lineage, who(key="alice", said=PROMPT), said=PROMPT)
    assert (place.parent_session, place.lane, place.key) == ("alice/p", "child", "alice")


@pytest.mark.parametrize("first_is_waiting", [True, False])
def test_a_request_without_tools_beside_another_of_its_session_is_auxiliary(
    lineage: Lineage, first_is_waiting: bool
) -> None:
    main = lineage.place(who("p"), [], True)
    lineage.arrived(main)
    if not first_is_waiting:
        lineage.started("main", main)
        lineage.left(main)
    assert lineage.place(who("p"), [], False).lane == "auxiliary"
    assert lineage.place(who("p"), [], True).lane == "parent"
    assert lineage.place(who("q"), [], False).lane == "parent"
    if first_is_waiting:
        lineage.left(main)
    else:
        lineage.ended("main", "stop", Spent())
    assert lineage.place(who("p"), [], False).lane == "parent"


def test_a_childs_side_request_keeps_its_depth(lineage: Lineage) -> None:
    ask(lineage, who("c", "p"), "main")
    place = lineage.place(who("c"), [], False)
    assert (place.lane, place.depth, place.parent_session) == ("auxiliary", 1, "p")


def test_strangers_who_begin_alike_have_no_side_requests(lineage: Lineage) -> None:
    ask(lineage, who(), "main")
    assert lineage.place(who(), [], False).lane == "unknown"


@pytest.mark.parametrize(
    "headers",
    [
        {"x_grok_session_id": "s", "x_grok_conv_id": "recap-1"},
        {"thread_id": "s", "x_openai_subagent": "compact"},
        {"x_claude_code_session_id": "s", "x_claude_code_request_class": "auxiliary"},
    ],
)
def test_an_auxiliary_mark_holds_with_nothing_in_flight_and_tools(lineage: Lineage, headers: dict[str, str]) -> None:
    assert ask(lineage, who(**headers)).lane == "auxiliary"
    assert view(lineage, "s").lane == "parent"


def test_sessions_that_name_each_other_as_parents_end_somewhere(lineage: Lineage) -> None:
    depths: list[int] = []
    for _ in range(3):
        depths = [ask(lineage, who(*names)).depth for names in (("a", "b"), ("b", "c"), ("c", "a"))]
    assert depths == [2, 2, 2]
    assert len(lineage.sessions()) == 3


def test_what_became_of_its_requests_is_counted(lineage: Lineage, clock: Clock) -> None:
    place = ask(lineage, who("s", key="alice"), "one")
    assert (view(lineage, "alice/s").in_flight, view(lineage, "alice/s").last_outcome) == (1, "")
    clock.now_s += 5
    lineage.ended("one", "length", Spent(10, 4, 7))
    lineage.ended("one", "stop", Spent(10, 4, 7))
    ask(lineage, who("s", key="alice"), "two")
    lineage.ended("two", "stop", Spent(20, 11, 3))
    again = lineage.place(who("s", key="alice"))
    lineage.arrived(again)
    lineage.refused(again, "in_flight_full")
    lineage.left(again)
    assert view(lineage, "alice/s") == SessionView(
        session="alice/s",
        parent_session=None,
        root_session="alice/s",
        depth=0,
        lane="parent",
        client=place.client,
        family="other",
        key="alice",
        first_seen_s=1_000_100.0,
        last_seen_s=1_000_105.0,
        requests=3,
        in_flight=0,
        admitted=2,
        refused=1,
        prompt_tokens=30,
        cached_tokens=15,
        completion_tokens=10,
        last_outcome="in_flight_full",
        children=(),
    )


def test_looking_alone_leaves_nothing(lineage: Lineage) -> None:
    lineage.place(who("s"), ["x" * 100], True)
    assert lineage.sessions() == ()


def test_a_session_is_forgotten_after_a_day_without_a_request_but_not_in_the_midst_of_one(
    lineage: Lineage, clock: Clock
) -> None:
    ask(lineage, who("busy"), "long")
    ask(lineage, who("idle"))
    clock.now_s += IDLE_KEPT_S
    assert len(lineage.sessions()) == 2
    clock.now_s += 1
    assert [session.session for session in lineage.sessions()] == ["busy"]


def test_while_a_child_is_at_work_its_parents_are_not_forgotten(lineage: Lineage, clock: Clock) -> None:
    for names in (("p",), ("c", "p"), ("g", "c")):
        ask(lineage, who(*names))
    for _ in range(3):
        clock.now_s += IDLE_KEPT_S * 0.9
        assert ask(lineage, who("g")).depth == 2


def test_in_a_flood_of_sessions_those_in_flight_stay(clock: Clock) -> None:
    lineage = Lineage(clock=clock, sessions=10)
    ask(lineage, who("busy", "p"), "long")
    for number in range(100):
        ask(lineage, who(f"flood-{number}"))
    assert len(lineage.sessions()) == 10
    lineage.ended("long", "stop", Spent(1, 0, 1))
    assert (view(lineage, "busy").in_flight, view(lineage, "busy").completion_tokens) == (0, 1)


NAMES = st.sampled_from("abcdef")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "start", "end", "refuse", "later", "spawn"]),
        NAMES,
        st.none() | NAMES,
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 4))
def test_whatever_comes_the_table_stays_bounded_and_nothing_stays_in_flight(steps: Any, most: int) -> None:
    clock = Clock()
    lineage = Lineage(clock=clock, sessions=most)
    arrived: list[Place] = []
    started: list[str] = []
    for number, (step, session, parent, has_tools) in enumerate(steps):
        match step:
            case "arrive":
                arrived.append(lineage.place(who(session, parent or ""), [PROMPT], has_tools))
                lineage.arrived(arrived[-1])
            case "start" if arrived:
                lineage.started(str(number), arrived[-1])
                started.append(str(number))
                lineage.left(arrived.pop())
            case "refuse" if arrived:
                lineage.refused(arrived[-1], "in_flight_full")
                lineage.left(arrived.pop())
            case "end" if started:
                lineage.ended(started.pop(), "stop", Spent(1, 0, 1))
            case "spawn":
                lineage.spawned(who(session), [PROMPT])
            case _:
                clock.now_s += 3600
        views = lineage.sessions()
        assert len(views) <= most
        assert all((one.depth > 0) == (one.lane == "child") for one in views)
        assert all(one.root_session != one.session or one.depth == 0 for one in views)
    for place in arrived:
        lineage.left(place)
    for request_id in started:
        lineage.ended(request_id, "stop", Spent())
    assert all(one.in_flight == 0 for one in lineage.sessions())
    clock.now_s += IDLE_KEPT_S + 1
    assert lineage.sessions() == ()
