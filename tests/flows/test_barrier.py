"""Twenty clients at one barrier, as bench/barrier.py has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_three_rounds_keep_every_limit() -> None:
    command = [sys.executable, str(BENCH / "barrier.py"), "--rounds", "3", "--dry"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "| 3 of 3 | yes |" in ran.stdout
