"""Signals, the supervisor and giving the terminal back, on a pseudo-terminal of our own."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from console.terminal import EndSignals, Supervisor, Terminal, check_terminal, draws_ascii_only
from server.errors import TerminalUnfit

DEADLINE_S = 10.0


class Pty:
    """A pseudo-terminal that stands in for this process's stdin and stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.master, self.slave = pty.openpty()
        stream = os.fdopen(self.slave, "rb", buffering=0, closefd=False)
        monkeypatch.setattr(sys, "__stdin__", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)

    def drain(self) -> str:
        """All that was written to it and not read yet."""
        text = b""
        while select.select([self.master], [], [], 0.2)[0]:
            text += os.read(self.master, 65536)
        return text.decode(errors="replace")

    def close_master(self) -> None:
        os.close(self.master)
        self.master = -1


@pytest.fixture
def terminal_pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pty]:
    pair = Pty(monkeypatch)
    yield pair
    for fd in (pair.master, pair.slave):
        if fd >= 0:
            os.close(fd)


@pytest.fixture
def signals() -> Iterator[EndSignals]:
    caught = EndSignals()
    yield caught
    caught.close()


class Ended:
    """Records what a supervisor did, in order."""

    def __init__(self) -> None:
        self.acts: list[Any] = []
        self.over = threading.Event()

    def act(self, name: str, then: Callable[[], object] = lambda: None) -> Callable[[], object]:
        def do() -> None:
            self.acts.append(name)
            then()

        return do

    def end_process(self, code: int) -> None:
        self.acts.append(code)
        self.over.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_end_signal_is_caught_and_named(signals: EndSignals, number: signal.Signals):
    signal.raise_signal(number)
    assert signals.wait(DEADLINE_S) is number


def test_waking_and_other_signals_are_not_an_end(signals: EndSignals):
    signals.wake()
    assert signals.wait(DEADLINE_S) is None
    assert signals.wait(0.01) is None


def test_handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    EndSignals().close()
    assert {number: signal.getsignal(number) for number in before} == before


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals = EndSignals()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signals.close()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_restore_resets_modes_and_the_line_discipline(terminal_pair: Pty):
    terminal = Terminal()
    sane = termios.tcgetattr(terminal_pair.slave)
    raw = termios.tcgetattr(terminal_pair.slave)
    raw[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(terminal_pair.slave, termios.TCSANOW, raw)
    terminal.restore()
    assert termios.tcgetattr(terminal_pair.slave) == sane
    written = terminal_pair.drain()
    for sequence in ("\x1b[?1049l", "\x1b[?25h", "\x1b[?1000l", "\x1b[?1003l", "\x1b[?1006l", "\x1b[?2004l", "\x1b[<u"):
        assert sequence in written


def test_restore_does_not_wait_for_a_terminal_that_nobody_reads(terminal_pair: Pty):
    terminal = Terminal()
    os.set_blocking(terminal_pair.slave, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(terminal_pair.slave, b"x" * 4096):
            pass
    began = time.monotonic()
    terminal.restore()
    assert time.monotonic() - began < 1
    assert "\x1b[?1049l" in terminal_pair.drain(), "unread frames make room for the reset"


def test_a_closed_terminal_is_lost_and_restoring_it_is_harmless(terminal_pair: Pty):
    terminal = Terminal()
    assert not terminal.is_lost
    terminal_pair.close_master()
    assert terminal.is_lost
    terminal.restore()


def test_a_signal_stops_the_server_then_the_screen(terminal_pair: Pty, signals: EndSignals):
    ended = Ended()
    supervisor = Supervisor(
        signals,
        Terminal(),
        stop_server=ended.act("server stopped"),
        leave_screen=ended.act("screen told", lambda: ended.over.set()),
        end_process=ended.end_process,
    )
    supervisor.start()
    signal.raise_signal(signal.SIGTERM)
    assert ended.over.wait(DEADLINE_S)
    supervisor.screen_left()
    assert ended.acts == ["server stopped", "screen told"]
    assert terminal_pair.drain() == "", "the screen left by itself: nothing to repair"


def test_a_screen_that_does_not_leave_is_left_behind(terminal_pair: Pty, signals: EndSignals):
    ended = Ended()
    Supervisor(signals, Terminal(), ended.act("server"), ended.act("screen"), ended.end_process).start()
    signal.raise_signal(signal.SIGINT)
    assert ended.over.wait(DEADLINE_S)
    assert ended.acts == ["server", "screen", 0]
    assert "\x1b[?1049l" in terminal_pair.drain()


def test_a_lost_terminal_ends_the_program_without_a_signal(terminal_pair: Pty, signals: EndSignals):
    ended = Ended()
    Supervisor(signals, Terminal(), ended.act("server"), ended.act("screen"), ended.end_process).start()
    terminal_pair.close_master()
    assert ended.over.wait(DEADLINE_S)
    assert ended.acts == ["server", "screen", 1]


def test_leaving_the_screen_first_ends_the_watch(terminal_pair: Pty, signals: EndSignals):
    ended = Ended()
    supervisor = Supervisor(signals, Terminal(), ended.act("server"), ended.act("screen"), ended.end_process)
    supervisor.start()
    supervisor.screen_left()
    assert ended.acts == []


def test_a_terminal_is_fit(terminal_pair: Pty, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    check_terminal()


@pytest.mark.parametrize("kind", ["dumb", "unknown", ""])
def test_a_dumb_terminal_is_refused_with_what_to_do(terminal_pair: Pty, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setenv("TERM", kind)
    with pytest.raises(TerminalUnfit, match=r"TERM=.* --headless"):
        check_terminal()


@pytest.mark.parametrize(
    ("environ", "is_plain"),
    [
        ({}, False),
        ({"TERM": "xterm-256color", "LANG": "de_DE.UTF-8"}, False),
        ({"LANG": "en_US.utf8"}, False),
        ({"LC_CTYPE": "UTF-8"}, False),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
        ({"LANG": "C", "LC_CTYPE": "ja_JP.UTF-8"}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, True),
        ({"LANG": "de_DE"}, True),
        ({"TERM": "linux", "LANG": "de_DE.UTF-8"}, True),
    ],
)
def test_plain_ascii_is_drawn_where_the_environment_says_so(environ: dict[str, str], is_plain: bool):
    assert draws_ascii_only(environ) == is_plain


@pytest.mark.parametrize("stream", ["__stdin__", "__stderr__"])
def test_without_a_terminal_it_says_so(terminal_pair: Pty, monkeypatch: pytest.MonkeyPatch, stream: str):
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        monkeypatch.setattr(sys, stream, pipe)
        with pytest.raises(TerminalUnfit, match="--headless"):
            check_terminal()


def test_a_stream_that_is_gone_is_no_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "__stdin__", None)
    with pytest.raises(TerminalUnfit):
        check_terminal()
