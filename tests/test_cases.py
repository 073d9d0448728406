"""The page of reported cases names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", (TESTS / "CASES.md").read_text())
    assert len(named) > 100
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (TESTS / file).exists() or f"def {name}(" not in (TESTS / file).read_text()
    ]
    assert missing == []


def test_no_case_has_two_rows() -> None:
    rows = re.findall(r"^\| ((?:[ABC]\d\d ?)+)\|", (TESTS / "CASES.md").read_text(), re.MULTILINE)
    cases = " ".join(rows).split()
    assert len(cases) == len(set(cases)) > 90
