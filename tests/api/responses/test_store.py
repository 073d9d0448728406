"""Responses are kept within their bounds, and a conversation is kept whole as long as its last response is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.responses import store as module
from server.api.responses.store import (
    KEPT_MOST_BYTES,
    KEPT_S,
    Kept,
    ResponseStore,
    measure_conversation,
    read_conversation,
)
from server.errors import ResponseNotFound


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def build(text: str = "", previous: Kept | None = None, owner: str = "me") -> Kept:
    items, output = [{"role": "user", "content": text}], [{"role": "assistant", "content": text.upper()}]
    return Kept(owner, b"{}", msgspec.json.encode(items), msgspec.json.encode(output), previous)


def has(store: ResponseStore, response_id: str, owner: str = "me") -> bool:
    try:
        store.find(owner, response_id)
    except ResponseNotFound:
        return False
    return True


def texts(kept: Kept) -> list[Any]:
    return [item["content"] for item in read_conversation(kept)]


def test_what_is_kept_is_found_by_its_owner_alone() -> None:
    store, kept = ResponseStore(), build("a")
    store.put("resp_1", kept)
    assert store.find("me", "resp_1") is kept
    for owner, response_id in (("you", "resp_1"), ("", "resp_1"), ("me", "resp_2")):
        with pytest.raises(ResponseNotFound, match=response_id):
            store.find(owner, response_id)
    with pytest.raises(ResponseNotFound):
        store.delete("you", "resp_1")
    assert has(store, "resp_1")


def test_a_conversation_is_all_items_in_their_order() -> None:
    first = build("a")
    second = build("b", first)
    third = build("c", second)
    assert texts(third) == ["a", "A", "b", "B", "c", "C"]
    assert texts(build("d", first)) == ["a", "A", "d", "D"]
    assert read_conversation(None) == []
    assert measure_conversation(second) == sum(len(each.items) + len(each.output) for each in (first, second))


def test_what_is_deleted_is_gone_and_later_ones_keep_what_they_need() -> None:
    store, first = ResponseStore(), build("a")
    second = build("b", first)
    store.put("resp_1", first)
    store.put("resp_2", second)
    store.delete("me", "resp_1")
    assert not has(store, "resp_1")
    assert texts(store.find("me", "resp_2")) == ["a", "A", "b", "B"]
    assert store.count == 2
    store.delete("me", "resp_2")
    assert (store.count, store.kept_bytes) == (0, 0)


def test_the_oldest_go_first_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MOST", 3)
    store = ResponseStore()
    for number in range(5):
        store.put(f"resp_{number}", build())
    assert [has(store, f"resp_{number}") for number in range(5)] == [False, False, True, True, True]
    assert store.count == 3


def test_the_oldest_go_first_when_they_take_too_much() -> None:
    store = ResponseStore()
    for number in range(5):
        store.put(f"resp_{number}", build("x" * (KEPT_MOST_BYTES // 8)))
    assert [has(store, f"resp_{number}") for number in range(5)] == [False, False, True, True, True]
    assert store.kept_bytes <= KEPT_MOST_BYTES


def test_what_is_too_large_by_itself_is_not_kept() -> None:
    store = ResponseStore()
    store.put("resp_1", build("x" * KEPT_MOST_BYTES))
    assert not has(store, "resp_1")
    assert (store.count, store.kept_bytes) == (0, 0)


def test_a_conversation_that_has_grown_too_large_goes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MOST", 3)
    store, last = ResponseStore(), None
    for number in range(4):
        last = build(str(number), last)
        store.put(f"resp_{number}", last)
    assert not any(has(store, f"resp_{number}") for number in range(4))
    assert (store.count, store.kept_bytes) == (0, 0)


def test_what_is_old_is_gone() -> None:
    clock = Clock()
    store = ResponseStore(clock)
    store.put("resp_1", build())
    clock.now_s = KEPT_S / 2
    store.put("resp_2", build())
    clock.now_s = KEPT_S - 1
    assert has(store, "resp_1")
    clock.now_s = KEPT_S
    assert not has(store, "resp_1")
    assert has(store, "resp_2")
    assert store.count == 1


def test_what_was_let_go_of_while_it_was_gone_on_from_counts_again() -> None:
    store, first = ResponseStore(), build("a")
    second = build("b", first)
    store.put("resp_1", first)
    store.put("resp_2", second)
    store.delete("me", "resp_1")
    store.delete("me", "resp_2")
    store.put("resp_3", build("c", second))
    assert store.count == 3
    store.delete("me", "resp_3")
    assert (store.count, store.kept_bytes) == (0, 0)


def test_a_conversation_of_thousands_of_turns_is_read_and_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MOST", 100_000)
    store, last = ResponseStore(), None
    for number in range(20_000):
        last = build("", last)
        store.put(f"resp_{number}", last)
    assert last is not None
    assert len(read_conversation(last)) == 40_000
    for number in range(20_000):
        store.delete("me", f"resp_{number}")
    assert (store.count, store.kept_bytes) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.integers(0, 5), st.integers(0, 300)), max_size=60))
def test_the_count_is_that_of_what_can_be_reached(acts: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KEPT_MOST", 4)
        patch.setattr(module, "KEPT_MOST_BYTES", 7000)
        store, known = ResponseStore(), list[Kept]()
        for place, (act, which, size) in enumerate(acts):
            ids = list(store._listed)
            if act == "delete" and ids:
                store.delete("me", ids[which % len(ids)])
            elif act == "put":
                # Any that was ever known may be gone on from, whether it is kept by now or not.
                known.append(build("x" * size, known[-1 - which % len(known)] if known and which else None))
                store.put(f"resp_{place}", known[-1])
            reached = {id(turn): turn for kept in store._listed.values() for turn in module.list_turns(kept)}
            assert store.count == len(reached) <= 4
            assert store.kept_bytes == sum(turn.size_bytes for turn in reached.values()) <= 7000
