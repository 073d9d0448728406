"""Refusals in a row and in full: numbers are whole or not there, names give way, what is not known is a dash."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from console.widgets.lines import Line, line_width
from console.widgets.refusal_lines import refusal_lines, use_words
from console.widgets.refusal_summary import refusal_facts
from console.widgets.stream_detail import detail_lines
from server.memory_plan import GIB

if TYPE_CHECKING:
    from tests.console.conftest import Samples

WIDTHS = range(60, 220, 7)


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


def numbers_of(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,.:]*\d|\d", text))


@pytest.fixture
def long(samples: Samples) -> Any:
    return samples.refused(
        request_id="req-0123456789ab",
        client="a-client-with-a-very-long-name/12.34.56",
        session="conversation-0123456789",
        code="memory_budget_full",
        limit=int(63.9 * GIB),
        used=int(61.2 * GIB),
        prompt_tokens=123_456,
        max_tokens=8_000,
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_cut_in_a_row(samples: Samples, long: Any, width: int) -> None:
    for refused in (long, samples.refused(client=long.client), samples.refused(used=12, limit=12)):
        admission = msgspec.structs.replace(
            samples.snapshot().admission, recent_refusals=(refused,), refused_by_code={"in_flight_full": 1_234_567}
        )
        head, line, *_ = refusal_lines(msgspec.structs.replace(samples.snapshot(), admission=admission), width, 2)
        assert line_width(head) == line_width(line) == width
        assert use_words(refused) in text_of(line), "the digits that matter, whatever the name"
        whole = numbers_of(f"{use_words(refused)} {long.client} 12 429 123,456 8,000 1,830 512")
        told = text_of(line).partition(use_words(refused))
        assert numbers_of(told[2]) <= whole
        assert not numbers_of(text_of(head)) - {"1,234,567", "0"}


def test_rows_stand_under_one_another_when_one_has_long_numbers(samples: Samples, long: Any) -> None:
    refusals = (samples.refused(), long)
    admission = msgspec.structs.replace(samples.snapshot().admission, recent_refusals=refusals)
    _, *lines = refusal_lines(msgspec.structs.replace(samples.snapshot(), admission=admission), 80, 2)
    places = [text_of(line).index(use_words(refused)) for line, refused in zip(lines, refusals, strict=True)]
    assert places[0] == places[1]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [3, 5, 6])
def test_no_number_is_cut_in_full(samples: Samples, long: Any, width: int, rows: int) -> None:
    for refused in (long, samples.refused(max_tokens=8_000, request_id="req-0123456789ab")):
        _, facts, *rest = refusal_facts(refused, width, rows)
        assert line_width(facts) <= width
        assert use_words(refused) in text_of(facts)
        asked = re.search(r"max_tokens (\S+)", text_of(facts))
        assert asked is None or asked[1] == "8,000"
        if rows > 3:
            assert line_width(rest[0]) <= width
            request = re.search(r"request (\S*)", text_of(rest[0]))
            assert request is None or request[1] == "req-0123456789ab"
    assert "request req-0123456789ab" in text_of(
        refusal_facts(samples.refused(request_id="req-0123456789ab"), 80, 5)[2]
    )


def test_what_is_not_known_is_a_dash(samples: Samples) -> None:
    loading = samples.refused(code="model_loading", limit=None, used=None, prompt_tokens=None, max_tokens=None)
    assert "use -  prompt -  max_tokens not said" in text_of(refusal_facts(loading, 120, 5)[1])
    admission = msgspec.structs.replace(samples.snapshot().admission, recent_refusals=(loading,))
    line = text_of(refusal_lines(msgspec.structs.replace(samples.snapshot(), admission=admission), 140, 1)[1])
    assert re.search(r"unknown +-  prompt - ", line)


def test_a_deep_child_is_told_with_its_depth(samples: Samples) -> None:
    child, grandchild = (samples.refused(lane="child", depth=depth) for depth in (1, 2))
    assert "child  request" in text_of(refusal_facts(child, 120, 5)[2])
    assert "child, depth 2  request" in text_of(refusal_facts(grandchild, 120, 5)[2])
    rows = [text_of(line) for line in detail_lines(samples.stream(lane="child", depth=2), 80, 40)]
    assert any(re.match(r"lane +child, depth 2$", row.strip()) for row in rows)
