"""A table that is far larger than the memory that its process may have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "ngram_table.py"
GB = 1024**3


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not hold a process to an address space")
def test_a_table_of_eight_gigabytes_is_served_in_two() -> None:
    command = [sys.executable, str(BENCH), "--tokens", "600", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    print(figures)  # for those who ask pytest for it
    assert figures["table_bytes"] >= 8 * GB
    assert figures["forward_tokens"] == 600
    assert figures["decode_rows_per_s"] > 0
    assert figures["growth_bytes"] < 150 * 2**20
