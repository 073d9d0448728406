from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from server.engine.scheduler import ChunkLimits, Need, plan_step
from server.engine.sharing import (
    LEAST_SHARED_TOKENS,
    Prompt,
    Share,
    count_common,
    explain_shared,
    explain_waiting,
    find_share,
    hold_back,
)


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_common_tokens_are_counted_to_the_first_that_differs(common: int, ours: int, theirs: int) -> None:
    start = tuple(range(common))
    assert count_common(start + (-1,) * ours, start + (-2,) * theirs) == common
    assert count_common(start, start + (-2,) * theirs) == common


def prompt(name: str, done: int = 0, *, tokens: int = 1000, can_lead: bool = True, **common: int) -> Prompt:
    return Prompt(name, tokens, done, common, can_lead)


@pytest.mark.parametrize(
    ("own", "earlier", "expected"),
    [
        (prompt("b", a=300), [prompt("a")], Share("a", 300)),
        (prompt("b", a=300), [prompt("a", 299)], Share("a", 300)),
        (prompt("b", a=300), [prompt("a", 300)], Share("a", 300)),
        (prompt("b", a=300), [prompt("a", 301)], None),
        (prompt("b", a=LEAST_SHARED_TOKENS), [prompt("a")], Share("a", LEAST_SHARED_TOKENS)),
        (prompt("b", a=LEAST_SHARED_TOKENS - 1), [prompt("a")], None),
        (prompt("b", 240, a=300), [prompt("a", 250)], None),
        (prompt("b", a=1000), [prompt("a")], Share("a", 999)),
        (prompt("b", tokens=2000, a=1000), [prompt("a")], Share("a", 999)),
        (prompt("b", a=1000), [prompt("a", tokens=2000)], Share("a", 999)),
        (prompt("b", tokens=64, a=64), [prompt("a")], None),
        (prompt("b", a=300), [prompt("a", can_lead=False)], None),
        (prompt("c", a=300, b=400), [prompt("a"), prompt("b")], Share("b", 400)),
        (prompt("c", a=300, b=300), [prompt("a"), prompt("b")], Share("a", 300)),
        (prompt("c", a=300, b=400), [prompt("a"), prompt("b", 500)], Share("a", 300)),
        (prompt("b"), [prompt("a")], None),
        (prompt("b", a=300), [], None),
    ],
)
def test_a_prompt_waits_for_the_one_that_saves_it_most(
    own: Prompt, earlier: list[Prompt], expected: Share | None
) -> None:
    assert find_share(own, earlier) == expected


def plan(needs: list[Need], shares: dict[str, Share]) -> list[tuple[str, int]]:
    turns = plan_step(hold_back(needs, shares), ChunkLimits(512, 1000, 0.5), step=1)
    return [(turn.request_id, turn.prefill_tokens) for turn in turns]


def test_who_waits_is_not_planned_and_who_is_waited_for_stops_where_they_part() -> None:
    needs = [Need("a", 900, 5, context_tokens=100), Need("b", 1000, -1), Need("d", 0, 3)]
    assert plan(needs, {"b": Share("a", 300)}) == [("a", 200), ("d", 0)]
    assert plan(needs, {}) == [("b", 512), ("d", 0)]


def test_the_nearest_of_several_ends_the_chunk() -> None:
    needs = [Need(name, 1000, -1) for name in "abc"]
    assert plan(needs, {"b": Share("a", 400), "c": Share("a", 150)}) == [("a", 150)]


def test_a_parent_that_waits_for_a_child_lifts_it_above_others() -> None:
    needs = [Need("child", 1000, 9, priority=1), Need("other", 1000, 2, priority=1), Need("parent", 1000, -1)]
    assert plan(needs, {"parent": Share("child", 700)}) == [("child", 512)]
    waits_in_line = [*needs[:2], replace(needs[1], request_id="late"), needs[2]]
    line = {"late": Share("child", 300), "parent": Share("late", 700)}
    assert plan(waits_in_line, line) == [("child", 300)]


def test_nobody_who_waits_changes_nothing() -> None:
    needs = [Need("a", 900, 5), Need("d", 0, 3)]
    assert hold_back(needs, {}) == needs


def test_what_another_stream_computes_is_told_with_the_numbers() -> None:
    waiting = prompt("b", 512, tokens=2788, a=2788)
    share = Share("a", 2787)
    assert explain_waiting(waiting, 512, share) == (
        "512 of 2,788 tokens so far: another stream computes the next 2,275"
    )
    done = replace(waiting, done_tokens=2787)
    assert explain_shared(done, 2787, share) == "2,787 of 2,788 tokens: another stream computed them"
    parted = prompt("b", 1300, tokens=2788, a=1300)
    assert explain_shared(parted, 1300, Share("a", 1300)) == (
        "1,300 of 2,788 tokens: another stream computed them, and the two part at token 1,300"
    )
    assert explain_shared(replace(done, done_tokens=1024), 1024, share) == (
        "1,024 of 2,788 tokens: another stream computed them before it ended"
    )
