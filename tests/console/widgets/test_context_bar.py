"""The context bar adds up, shows every part there is, and differs in shape where colours are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.widgets.context_bar import context_bar, context_legend, context_parts, context_ratio, share_cells
from console.widgets.lines import line_width

if TYPE_CHECKING:
    from tests.console.conftest import Samples


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=5), st.integers(0, 120))
def test_shares_fill_the_bar_exactly(amounts: list[int], width: int) -> None:
    cells = share_cells(amounts, width)
    assert sum(cells) == (width if sum(amounts) else 0)
    assert all(size >= 0 for size in cells)
    if width >= 2 * len(amounts):
        assert all((size > 0) == (amount > 0) for size, amount in zip(cells, amounts, strict=True))


def test_parts_of_a_stream_add_up_to_its_limit(samples: Samples) -> None:
    assert context_parts(samples.stream()) == (47_832, 3_074, 0, 1_204, 78_962)
    assert context_parts(samples.prefill_child()) == (4_096, 14_336, 26_479, 0, 86_161)
    assert sum(context_parts(samples.prefill_child())) == 131_072


def test_a_stream_that_ended_in_prefill_has_nothing_left_to_read(samples: Samples) -> None:
    ended = samples.prefill_child(phase="finished", outcome="cancelled")
    assert context_parts(ended)[2] == 0


def test_without_colours_every_part_has_its_own_sign(samples: Samples) -> None:
    for stream in (samples.stream(), samples.prefill_child()):
        bar = context_bar(stream, 60, plain=True)
        signs = [text[0] for text, _ in bar]
        assert len(set(signs)) == len(signs)
        assert line_width(bar) == 60
        legend = "".join(text for text, _ in context_legend(stream, 100, plain=True))
        assert all(sign in legend for sign in signs)


@pytest.mark.parametrize("limit", [0, 10])
def test_a_limit_that_is_missing_or_passed_breaks_nothing(samples: Samples, limit: int) -> None:
    stream = samples.stream(context_limit_tokens=limit)
    assert line_width(context_bar(stream, 30)) == 30
    assert context_ratio(stream) == (None if limit == 0 else 5211.0)
