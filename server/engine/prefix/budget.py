"""Which parts of the prefix cache go when it is full. Pure.

Least recently used first, leaves first: a path is cut back from its end, for rows are of no use without those before
them. Points between the ends of paths count as parts of their own. They age unless paths part there, so in a long
conversation the points it has left behind go before anybody's rows do; and one is worth thousands of rows in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.engine.prefix.tree import Node, PrefixTree


def measure(trees: Sequence[PrefixTree]) -> int:
    """Bytes of everything held."""
    return sum(tree.nbytes for tree in trees)


def make_room(trees: Sequence[PrefixTree], budget_bytes: int, wanted_bytes: int) -> bool:
    """Evict until `wanted_bytes` more fit the budget; False when they cannot, and then nothing is evicted for them.

    What is pinned stays.
    """
    held = measure(trees)
    pinned = sum(_protected_bytes(tree) for tree in trees)
    if pinned + wanted_bytes > budget_bytes:
        return False
    while held + wanted_bytes > budget_bytes and (oldest := _find_oldest(trees)):
        for tree, node in oldest:
            if held + wanted_bytes <= budget_bytes:
                break
            _evict(tree, node)
            held = measure(trees)
    return held + wanted_bytes <= budget_bytes


def _protected_bytes(tree: PrefixTree) -> int:
    """Bytes that cannot go: the rows of what is pinned, and its own point."""
    kept = {above for node in tree.nodes() if node.pins for above in node.line}
    return sum(node.nbytes if node.pins or node.point is None else node.nbytes - node.point.nbytes for node in kept)


def _find_oldest(trees: Sequence[PrefixTree]) -> list[tuple[PrefixTree, Node]]:
    """What can go now, the one used longest ago first."""
    found: list[tuple[int, int, PrefixTree, Node]] = []
    for tree in trees:
        for node in tree.nodes():
            if node.pins:
                continue
            if not node.children:
                found.append((max(node.used, node.point_used), -node.end, tree, node))
            elif node.point is not None:
                found.append((node.point_used, -node.end, tree, node))
    return [(tree, node) for _, _, tree, node in sorted(found, key=lambda each: each[:2])]


def _evict(tree: PrefixTree, node: Node) -> None:
    if node.children:
        node.point = None
    elif node.parent is not None:  # else it went along with another
        tree.remove(node)
