"""`bench/fuzz.py` in its short form and, marked slow, in its whole length: nothing that a client sends does harm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import free_port

BENCH = Path(__file__).parents[2] / "bench"


def fuzz(cases: int, timeout_s: float) -> str:
    """Run so many cases; what it prints."""
    command = [sys.executable, str(BENCH / "fuzz.py"), "--cases", str(cases), "--port", str(free_port()), "--dry"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(300)
def test_some_hundred_drawn_requests_do_no_harm() -> None:
    told = fuzz(250, 280)
    for kind in ("extreme", "mutated", "hostile", "broken", "place", "left", "schema"):
        assert f"| {kind} |" in told


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twenty_thousand_drawn_requests_do_no_harm() -> None:
    fuzz(20_000, 7000)
