"""The short form of `bench/soak.py`: memory is flat after warming up, and the budget is never passed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import free_port

BENCH = Path(__file__).parents[2] / "bench"
MINUTES = 3.0


@pytest.mark.timeout(500)
def test_memory_is_flat_under_unique_prompts_and_cancels() -> None:
    command = [sys.executable, str(BENCH / "soak.py"), "--minutes", str(MINUTES), "--port", str(free_port()), "--dry"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "complete: " in done.stdout
    assert "left in decode: " in done.stdout
