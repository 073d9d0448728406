"""A radix tree over token ids: what prompts begin with in common is held once. Pure: payloads are opaque.

A node owns the rows of its span of tokens, so ten sessions with one shared head hold the head once and grow by their
tails only. A node may have a point at its end: whatever of a model's state is right at that position alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

TOKEN_BYTES = 4
"""Tokens are compared and hashed as bytes: 60,000 of them then take microseconds, and no object each."""


class Sized(Protocol):
    """A payload that knows its size."""

    @property
    def nbytes(self) -> int:
        """Bytes that dropping it gives back."""
        ...


class Rows(Sized, Protocol):
    """A payload for a span of tokens."""

    def cut(self, tokens: int) -> tuple[Any, Any]:
        """The payloads of the first so many tokens and of those after them."""
        ...


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids, each 0..2**32-1, as the tree takes them."""
    return array("I", token_ids).tobytes()


class Node:
    """A span of tokens that follows its parent's."""

    __slots__ = ("children", "key", "parent", "pins", "point", "point_used", "rows", "start", "used")

    def __init__(self, key: bytes, start: int, rows: Rows | None, parent: Node | None) -> None:
        self.key = key
        """The span's tokens, packed."""
        self.start = start
        self.rows = rows
        """None at the root only."""
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        """By the first token of each."""
        self.point: Sized | None = None
        self.used = 0
        self.point_used = 0
        """When its rows and its point were last of use, by the clock that `touch` is told."""
        self.pins = 0
        """Above 0 it is not to be evicted."""

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + len(self.key) // TOKEN_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of its payloads."""
        return (self.rows.nbytes if self.rows else 0) + (self.point.nbytes if self.point else 0)

    @property
    def line(self) -> tuple[Node, ...]:
        """The nodes from the first token to this one, the root left out."""
        found: list[Node] = []
        node = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return tuple(reversed(found))


class Match(msgspec.Struct, frozen=True):
    """What of some tokens is in the tree."""

    path: tuple[Node, ...]
    """The nodes that hold the common tokens; the last one may hold others after them."""
    common: int
    """How many of the first tokens are there."""
    point: Node | None
    """The deepest node of the path with a point that is not past the common tokens, nor past the limit."""


class PrefixTree:
    """All that is held of one kind of state."""

    def __init__(self) -> None:
        self.root = Node(b"", 0, None, None)
        self.keeps_bare_rows = False
        """Whether rows without a point at or after them are of use."""

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(node.nbytes for node in self.nodes())

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents before children."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if node.parent is not None:
                yield node

    def find(self, tokens: bytes, limit: int | None = None) -> Match:
        """How far the tree goes along with packed tokens, and the deepest point at most `limit` tokens in."""
        node, common, path = self.root, 0, list[Node]()
        point: Node | None = None
        while child := node.children.get(tokens[common * TOKEN_BYTES : (common + 1) * TOKEN_BYTES]):
            path.append(child)
            common += _count_common(tokens, common * TOKEN_BYTES, child.key)
            if common < child.end:
                break
            node = child
            if child.point is not None and (limit is None or common <= limit):
                point = child
        return Match(tuple(path), common, point)

    def insert(self, tokens: bytes, point: Sized | None, build_rows: Callable[[int, int], Rows]) -> Node:
        """The node that ends with these tokens, made if need be, with the point if one is given.

        `build_rows(first, end)` is asked for the span that is missing; when it raises, nothing is added.
        """
        assert tokens, "a prefix has tokens"
        match = self.find(tokens)
        node = match.path[-1] if match.path else self.root
        end = len(tokens) // TOKEN_BYTES
        rows = build_rows(match.common, end) if match.common < end else None
        if match.common < node.end:
            node = self._split(node, match.common - node.start)
        if rows is not None:
            key = tokens[match.common * TOKEN_BYTES :]
            node.children[key[:TOKEN_BYTES]] = node = Node(key, match.common, rows, node)
        node.point = node.point if point is None else point
        return node

    def touch(self, node: Node, now: int) -> None:
        """Note that a node's line was of use: its rows, its own point, and points that others may still begin at.

        Those are the first of the line, which is where prompts of one client part, and any where paths part already.
        Others between are passed by; they age, and are the first to be thinned out.
        """
        first = True
        for each in node.line:
            each.used = now
            if each.point is not None and (first or each is node or len(each.children) > 1):
                each.point_used = now
            first = first and each.point is None

    def remove(self, leaf: Node) -> None:
        """Drop a node without children, and whatever above it is of no use without it."""
        node = leaf
        while node.parent is not None and not node.children:
            parent = node.parent
            del parent.children[node.key[:TOKEN_BYTES]]
            node.parent = None  # or the two would hold each other, and gigabytes, until the next full collection
            node = parent
            if node.pins or node.point is not None or self.keeps_bare_rows:
                break

    def clear(self) -> None:
        """Drop everything."""
        for node in list(self.nodes()):
            node.parent, node.rows, node.point = None, None, None
            node.children.clear()
        self.root.children.clear()

    def _split(self, node: Node, tokens: int) -> Node:
        """Cut a node in two; the upper one, with the first so many tokens. The node itself becomes the lower one."""
        assert node.rows is not None
        assert node.parent is not None
        upper_rows, lower_rows = node.rows.cut(tokens)
        cut = tokens * TOKEN_BYTES
        upper = Node(node.key[:cut], node.start, upper_rows, node.parent)
        upper.used = node.used
        node.parent.children[upper.key[:TOKEN_BYTES]] = upper
        node.key, node.start, node.rows, node.parent = node.key[cut:], node.start + tokens, lower_rows, upper
        upper.children[node.key[:TOKEN_BYTES]] = node
        return upper


def _count_common(tokens: bytes, at: int, key: bytes) -> int:
    """How many tokens a key has in common with others from a byte on."""
    shorter = min(len(tokens) - at, len(key))
    if tokens[at : at + shorter] == key[:shorter]:
        return shorter // TOKEN_BYTES
    same, differs = 0, shorter // TOKEN_BYTES  # so many tokens are equal; so many are not all equal
    while differs - same > 1:
        middle = (same + differs) // 2
        first, end = same * TOKEN_BYTES, middle * TOKEN_BYTES
        if tokens[at + first : at + end] == key[first:end]:
            same = middle
        else:
            differs = middle
    return same
