"""The radix tree against a dictionary of everything that was put in."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.prefix.budget import make_room, measure
from server.engine.prefix.tree import Match, Node, PrefixTree, pack_tokens


@dataclass(frozen=True)
class Text:
    """Rows that are the tokens themselves, so that a cut in the wrong place shows."""

    first: int
    tokens: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 10 * len(self.tokens)

    def cut(self, tokens: int) -> tuple[Text, Text]:
        assert 0 < tokens < len(self.tokens)
        return Text(self.first, self.tokens[:tokens]), Text(self.first + tokens, self.tokens[tokens:])


@dataclass(frozen=True)
class Mark:
    tokens: tuple[int, ...]
    nbytes: int = 25


def put(tree: PrefixTree, tokens: tuple[int, ...], *, point: bool = True) -> Node:
    def build(first: int, end: int) -> Text:
        return Text(first, tokens[first:end])

    return tree.insert(pack_tokens(tokens), Mark(tokens) if point else None, build)


def find(tree: PrefixTree, tokens: tuple[int, ...], limit: int | None = None) -> Match:
    return tree.find(pack_tokens(tokens), limit)


def count_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def check(tree: PrefixTree) -> None:
    """Every node holds its own tokens, and knows where it is."""
    for node in tree.nodes():
        text = b"".join(each.key for each in node.line)
        assert isinstance(node.rows, Text)
        assert node.parent is not None
        assert (node.start, node.end) == (node.parent.end, len(text) // 4)
        assert node.rows.first == node.start
        assert pack_tokens(node.rows.tokens) == node.key
        assert node.point is None or (isinstance(node.point, Mark) and pack_tokens(node.point.tokens) == text)
        assert all(key == child.key[:4] for key, child in node.children.items())


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


@settings(max_examples=300)
@given(added=st.lists(st.tuples(TOKENS, st.booleans()), max_size=12), asked=TOKENS, limit=st.integers(0, 12))
def test_it_finds_what_a_dictionary_would(
    added: list[tuple[tuple[int, ...], bool]], asked: tuple[int, ...], limit: int
) -> None:
    tree, points = PrefixTree(), set[tuple[int, ...]]()
    for tokens, point in added:
        node = put(tree, tokens, point=point)
        assert node.end == len(tokens)
        points |= {tokens} if point else set()
        check(tree)
    match = find(tree, asked, limit)
    assert match.common == max((count_common(asked, tokens) for tokens, _ in added), default=0)
    fitting = [len(point) for point in points if len(point) <= limit and asked[: len(point)] == point]
    assert (match.point.end if match.point else 0) == max(fitting, default=0)
    held = b"".join(node.key for node in match.path)
    assert held[: match.common * 4] == pack_tokens(asked[: match.common])
    distinct = {tokens[:end] for tokens, _ in added for end in range(1, len(tokens) + 1)}
    assert sum(len(node.key) // 4 for node in tree.nodes()) == len(distinct)


@settings(max_examples=300)
@given(added=st.lists(TOKENS, min_size=1, max_size=12), pinned=st.sets(st.integers(0, 11)), data=st.data())
def test_evicting_keeps_to_the_budget_and_never_takes_what_is_pinned(
    added: list[tuple[int, ...]], pinned: set[int], data: st.DataObject
) -> None:
    tree = PrefixTree()
    for clock, tokens in enumerate(added):
        tree.touch(put(tree, tokens), clock)
    kept = [tokens for place, tokens in enumerate(added) if place in pinned]
    for tokens in kept:
        put(tree, tokens).pins += 1
    budget, wanted = data.draw(st.integers(0, 400)), data.draw(st.integers(0, 100))
    before = measure([tree])
    fits = make_room([tree], budget, wanted)
    check(tree)
    if fits:
        assert measure([tree]) + wanted <= budget
    else:
        distinct = {tokens[:end] for tokens in kept for end in range(1, len(tokens) + 1)}
        assert 10 * len(distinct) + 25 * len(set(kept)) + wanted > budget
    assert fits == (measure([tree]) + wanted <= budget)
    assert not (before + wanted <= budget) or measure([tree]) == before
    for tokens in kept:
        match = find(tree, tokens)
        assert match.point is not None
        assert match.point.end == len(tokens)


def test_ten_sessions_hold_their_head_once() -> None:
    tree = PrefixTree()
    head = tuple(range(1000))
    put(tree, head)
    for session in range(10):
        put(tree, (*head, *range(2000 + 50 * session, 2050 + 50 * session)))
    assert measure([tree]) == 10 * 1000 + 25 + 10 * (10 * 50 + 25)


def test_a_build_that_fails_adds_nothing() -> None:
    tree = PrefixTree()
    put(tree, (1, 2, 3))

    def fail(first: int, end: int) -> Text:
        raise MemoryError

    with pytest.raises(MemoryError):
        tree.insert(pack_tokens((1, 2, 4)), Mark((1, 2, 4)), fail)
    check(tree)
    assert find(tree, (1, 2, 4)).common == 2
    assert measure([tree]) == 3 * 10 + 25


def test_the_session_used_longest_ago_goes_first_from_its_end() -> None:
    tree = PrefixTree()
    tree.touch(put(tree, (1, 2)), 1)
    tree.touch(put(tree, (1, 2, 3)), 2)
    tree.touch(put(tree, (1, 2, 4)), 3)
    tree.touch(put(tree, (1, 2, 3)), 4)
    assert make_room([tree], measure([tree]), 1)
    assert find(tree, (1, 2, 4)).common == 2
    assert find(tree, (1, 2, 3)).common == 3


def test_points_left_behind_go_before_rows() -> None:
    tree = PrefixTree()
    tree.touch(put(tree, (9, 9)), 1)
    text = tuple(range(20, 40))
    for clock, end in enumerate((5, 10, 15, 20), start=2):
        tree.touch(put(tree, text[:end]), clock)
    tree.touch(put(tree, (9, 9)), 10)
    tree.touch(put(tree, text), 11)
    rows = measure([tree]) - 25 * 5
    assert make_room([tree], measure([tree]), 26)
    assert measure([tree]) == rows + 3 * 25
    match = find(tree, text, 19)
    assert match.common == 20
    assert match.point is not None
    assert match.point.end == 5  # the first of a path is where others part
    assert find(tree, (9, 9)).point is not None


def test_rows_that_lead_nowhere_go_along_unless_rows_are_enough() -> None:
    for bare, left in ((False, 0), (True, 2)):
        tree = PrefixTree()
        tree.keeps_bare_rows = bare
        put(tree, (1, 2, 3))
        put(tree, (1, 2, 4))
        for tokens in ((1, 2, 3), (1, 2, 4)):
            tree.remove(find(tree, tokens).path[-1])
        assert find(tree, (1, 2, 3)).common == left


def test_clearing_leaves_nothing() -> None:
    tree = PrefixTree()
    put(tree, (1, 2, 3))
    put(tree, (1, 5))
    tree.clear()
    assert measure([tree]) == 0
    assert find(tree, (1, 2)).common == 0
