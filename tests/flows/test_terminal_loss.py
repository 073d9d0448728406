"""Terminals that misbehave: nobody reads them, they are closed, or the console on them breaks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.flows.conftest import Homebase, OpenStream, PtyConsole

BREAKS = """
import sys
from console.app import HomebaseApp

def tick(self):
    raise RuntimeError("a widget broke")

HomebaseApp.tick = tick
from console.cli import main
sys.exit(main())
"""

RESET = ("\x1b[?1049l", "\x1b[?25h", "\x1b[?1000l", "\x1b[?1003l", "\x1b[?1006l", "\x1b[?2004l")


def check_told(stream: OpenStream) -> None:
    assert stream.ended.wait(8)
    assert stream.fault is None
    assert stream.error is not None


def check_reset(output: str) -> None:
    """The alternate screen was left last, with mouse reports off and the cursor on."""
    assert output.rfind("\x1b[?1049l") > output.rfind("\x1b[?1049h")
    for sequence in RESET:
        assert output.rfind(sequence) > output.rfind(sequence.replace("l", "h")) or sequence == "\x1b[?25h"
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")


def slowest_answer_s(homebase: Homebase, times: int) -> float:
    slowest = 0.0
    for _ in range(times):
        began = time.monotonic()
        assert homebase.status("/health") == 200
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def test_a_terminal_that_nobody_reads_does_not_slow_the_api(pty_console: Callable[..., PtyConsole], tmp_path: Path):
    (tmp_path / "homebase.toml").write_text("[console]\nrefresh_hz = 10\n")
    console = pty_console()
    console.drain()
    console.wait_ready()
    stream = console.open_stream()
    console.stop_draining()
    console.wait_until("the terminal is full", lambda: console.is_stuck, 60)
    # From here on Textual's queue of 30 frames fills at 10 a second; then its loop stands still.
    sent = len(stream.events)
    console.wait_until("the stream goes on all the while", lambda: len(stream.events) > sent + 200, 60)
    assert slowest_answer_s(console, 20) < 3, "a loop that stands still answers never"
    os.kill(console.pid, signal.SIGTERM)
    began = time.monotonic()
    assert console.process.wait(10) == 0
    assert time.monotonic() - began < 6
    check_told(stream)
    check_reset(console.rest())
    assert console.is_port_free()


def test_a_terminal_that_is_read_again_is_painted_again(pty_console: Callable[..., PtyConsole]):
    console = pty_console()
    console.drain()
    console.wait_ready()
    stream = console.open_stream()
    console.stop_draining()
    console.wait_until("the terminal is full", lambda: console.is_stuck, 60)
    before = console.received
    console.drain()
    console.wait_until("it is painted", lambda: console.received > before + 8000)
    os.kill(console.pid, signal.SIGTERM)
    assert console.process.wait(10) == 0
    console.stop_draining()
    check_told(stream)
    check_reset(console.rest())


def test_a_closed_terminal_ends_the_program_with_clients_told(pty_console: Callable[..., PtyConsole]):
    console = pty_console()
    console.drain()
    console.wait_ready()
    stream = console.open_stream()
    console.stop_draining()
    began = time.monotonic()
    console.hang_up()
    assert console.process.wait(10) == 1
    assert time.monotonic() - began < 6
    check_told(stream)
    assert console.is_port_free()


def test_quitting_does_not_wait_for_an_engine_step_of_a_minute(pty_console: Callable[..., PtyConsole]):
    console = pty_console(blocked=True)
    console.drain()
    console.wait_ready()
    stream = console.open_stuck_stream()
    console.press("q")
    console.wait_for_output("Cut and quit")
    console.press("\t\r")
    began = time.monotonic()
    assert console.process.wait(10) == 0
    assert time.monotonic() - began < 6
    console.stop_draining()
    check_told(stream)
    check_reset(console.rest())


def test_a_console_that_breaks_leaves_a_clean_terminal_and_one_sentence(pty_console: Callable[..., PtyConsole]):
    console = pty_console(launcher=BREAKS)
    assert console.process.wait(30) == 1
    output = console.rest()
    check_reset(output)
    last = output.replace("\r\n", "\n").rstrip("\n").rpartition("\n")[2].rpartition("\x1b")[2]
    assert "the console broke" in last
    assert "RuntimeError: a widget broke" in last
    assert f"homebase-{console.port}.log" in last
    assert "Traceback" not in output
    assert "Traceback" in console.log_file
    assert "a widget broke" in console.log_file
    assert console.is_port_free()
