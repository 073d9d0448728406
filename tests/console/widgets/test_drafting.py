from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from console.widgets.drafting import drafting_fact, drafting_in_short, drafting_line, drafting_words

if TYPE_CHECKING:
    from tests.console.conftest import Samples

OFF: dict[str, Any] = {"mtp": "off: [engine] mtp is off", "draft_depth": 0, "acceptance_ratio": None}
BEFORE: dict[str, Any] = {"draft_depth": None, "acceptance_ratio": None, "tokens_per_step": None}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "draft 3 deep · 74 % accepted · 2.6 tok/step"),
        ({"acceptance_ratio": 0.31}, "draft 3 deep · ▼ 31 % accepted · 2.6 tok/step"),
        ({"acceptance_ratio": None, "draft_depth": 0, "tokens_per_step": 1.0}, "draft 0 deep · 1.0 tok/step"),
        (OFF, "drafting off: [engine] mtp is off"),
        ({"mtp": "off: \x1b[2J"}, "drafting off: \\x1b[2J"),
        (BEFORE, "draft -"),
        ({"mtp": ""}, ""),
        ({"phase": "prefill"}, ""),
    ],
)
def test_a_band_says_how_deep_and_what_it_brings_or_why_not(
    samples: Samples, fields: dict[str, Any], text: str
) -> None:
    assert "".join(part for part, _ in drafting_line(samples.stream(**fields))) == text


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({}, ("draft", "3 · 74 %")),
        (OFF, ("draft", "off")),
        (BEFORE, ("draft", "0")),
        ({"mtp": ""}, None),
    ],
)
def test_little_room_gets_a_word(samples: Samples, fields: dict[str, Any], fact: tuple[str, str] | None) -> None:
    assert drafting_fact(samples.stream(**fields)) == fact


def test_the_detail_tells_acceptance_by_depth(samples: Samples) -> None:
    assert drafting_words(samples.stream()) == [
        ("drafting", "3 deep, 2.6 tokens per step"),
        ("accepted", "74 %; by depth 88 % · 74 % · 61 %"),
    ]
    assert drafting_words(samples.stream(acceptance_by_depth=())) == [("drafting", "3 deep, 2.6 tokens per step")]
    assert drafting_words(samples.stream(**OFF)) == [("drafting", "off: [engine] mtp is off")]


def test_a_narrow_column_gets_one_row(samples: Samples) -> None:
    assert drafting_in_short(samples.stream()) == [("drafting", "3 deep · 74 % · 2.6/step")]
    assert drafting_in_short(samples.stream(**BEFORE)) == [("drafting", "on")]
    assert drafting_in_short(samples.stream(mtp="")) == drafting_in_short(samples.prefill_child()) == []
