from __future__ import annotations

from collections.abc import Sequence

from server.engine.together import run_together


class Bench:
    """Doubles numbers; a negative one is poison, and every run leaves a mark on its items."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.restored: list[int] = []

    def run(self, items: Sequence[int]) -> list[int]:
        self.runs.append(list(items))
        for item in items:
            if item < 0:
                raise ValueError(item)
        return [2 * item for item in items]

    def restore(self, item: int) -> None:
        self.restored.append(item)


def test_all_go_together_while_nothing_fails() -> None:
    bench = Bench()
    assert run_together([1, 2, 3], bench.run, bench.restore) == [2, 4, 6]
    assert bench.runs == [[1, 2, 3]]
    assert bench.restored == []


def test_nothing_runs_for_nobody() -> None:
    bench = Bench()
    assert run_together([], bench.run, bench.restore) == []
    assert bench.runs == []


def test_after_a_fault_each_goes_alone_from_where_it_was() -> None:
    bench = Bench()
    first, second, third = run_together([1, -2, 3], bench.run, bench.restore)
    assert (first, third) == (2, 6)
    assert isinstance(second, ValueError)
    assert bench.runs == [[1, -2, 3], [1], [-2], [3]]
    assert bench.restored == [1, -2, 3]


def test_the_fault_of_one_alone_is_its_own() -> None:
    bench = Bench()
    (only,) = run_together([-1], bench.run, bench.restore)
    assert isinstance(only, ValueError)
    assert bench.runs == [[-1]]


def test_one_that_cannot_be_restored_fails_and_the_others_do_not() -> None:
    bench = Bench()

    def restore(item: int) -> None:
        if item == 1:
            raise KeyError(item)

    first, second, third = run_together([1, -2, 3], bench.run, restore)
    assert isinstance(first, KeyError)
    assert isinstance(second, ValueError)
    assert third == 6
