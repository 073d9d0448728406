"""One packed call for several sequences, and apart after a fault, so that only the one that causes it pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def run_together(
    items: Sequence[ItemT],
    run: Callable[[Sequence[ItemT]], list[ResultT]],
    restore: Callable[[ItemT], None],
) -> list[ResultT | Exception]:
    """A result, or the fault that is its own, for each item.

    `run` computes all results in one go or raises; `restore` undoes whatever it did to one item. A fault of one item
    costs the others a second pass in that step, and nothing else.
    """
    if not items:
        return []
    try:
        return [*run(items)]
    except Exception as fault:
        if len(items) == 1:
            return [fault]
    return [_run_alone(item, run, restore) for item in items]


def _run_alone(
    item: ItemT, run: Callable[[Sequence[ItemT]], list[ResultT]], restore: Callable[[ItemT], None]
) -> ResultT | Exception:
    try:
        restore(item)
        return run((item,))[0]
    except Exception as fault:
        return fault
