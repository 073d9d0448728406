"""`homebase-console bench fan-out` as an operator runs it: to the end, and ended in the middle by whatever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).parent / "homebase-console"
DEADLINE_S = 60.0
TINY = ("--context", "64", "--tokens", "16")


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SCRIPT, "bench", "fan-out", *TINY, *flags],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests in the background of a shell has Ctrl+C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env=os.environ | {"COLUMNS": "80", "LANG": "C.UTF-8"},
    )


def find_servers(pid: int) -> list[int]:
    """The processes that a bench has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_gone(pid: int) -> bool:
    """True when there is no such process, or it only waits to be looked at."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_until(look: Callable[[], object]) -> bool:
    until = time.monotonic() + DEADLINE_S
    while not look():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_both_halves_are_run_told_and_kept(tmp_path: Path):
    ran = start(tmp_path, "--streams", "1,3", "--out", "kept")
    out, _ = ran.communicate(timeout=100)
    assert ran.returncode == 0, out
    assert max(len(line) for line in out.splitlines() if "kept" not in line) <= 80
    assert "3 streams at 64 tokens: with everybody let in" in out
    document = json.loads(next((tmp_path / "kept").glob("fan-out-*.json")).read_text())
    cases = [(outcome["case"]["mode"], outcome["case"]["streams"]) for outcome in document["outcomes"]]
    assert cases == [("off", 1), ("off", 3), ("on", 1), ("on", 3)]
    refusals = [sum(len(turn["refusals"]) for turn in outcome["turns"]) for outcome in document["outcomes"]]
    assert refusals[:3] == [0, 0, 0]
    assert refusals[3] > 0, "three streams and two places"
    assert {turn["completion_tokens"] for outcome in document["outcomes"] for turn in outcome["turns"]} == {16}


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_server_is_left_behind(tmp_path: Path, number: signal.Signals):
    ran = start(tmp_path, "--streams", "4")
    assert ran.stdout is not None
    while "1 of 2" not in (line := ran.stdout.readline()):
        assert line, "it ended by itself"
    (server,) = find_servers(ran.pid)
    ran.send_signal(number)
    out, _ = ran.communicate(timeout=DEADLINE_S)
    assert ran.returncode == (-9 if number is signal.SIGKILL else 130), out
    assert "Traceback" not in out
    assert wait_until(lambda: is_gone(server))


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path):
    ran = start(tmp_path, "--model", str(tmp_path / "absent"))
    out, _ = ran.communicate(timeout=DEADLINE_S)
    assert ran.returncode == 2
    assert "no model folder" in out.splitlines()[-1]
