"""Moments as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from server.history.moments import parse_moment

NOW_S = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("90m", 5400),
        ("2h", 7200),
        ("3d", 259_200),
        ("1h30m", 5400),
        ("45s", 45),
        ("2w", 1_209_600),
        ("1.5h", 5400),
        (" 2H ", 7200),
        ("0s", 0),
    ],
)
def test_a_span_counts_back_from_now(text: str, ago_s: float) -> None:
    assert parse_moment(text, NOW_S) == NOW_S - ago_s


def test_a_date_is_itself() -> None:
    assert parse_moment("2026-11-30T14:05:00+00:00", NOW_S) == datetime(2026, 11, 30, 14, 5, tzinfo=UTC).timestamp()
    assert parse_moment("2026-11-30", NOW_S) == datetime(2026, 11, 30).timestamp()


@pytest.mark.parametrize(
    "text", ["", "2", "h", "-2h", "2h ago", "2y", "1.2.3h", "٣h", "1e9d", "9" * 30 + "d", "2026-13-01"]
)
def test_anything_else_is_told_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no moment; give for example 90m, 2h"):
        parse_moment(text, NOW_S)
