"""The terminal around the full-screen program: is it fit, signals that end the program, and giving it back clean.

Signals are taken by plain Python handlers and a socket pair, and acted upon by a thread: the main loop may be blocked
by a terminal that nobody reads, and then neither a handler of that loop nor a drawn message would ever run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from server.errors import TerminalUnfit

LEAVE_SCREEN_S = 1.0
"""How long the full-screen program may take to leave by itself once it was told to; it took 0.1-0.4 s on a busy box."""

HANG_UP_CHECK_S = 0.5
"""How often the terminal is asked whether it is still there: closing it sends SIGHUP only to those it controls."""

RESET_TRIES = 250
RESET_PAUSE_S = 0.002
"""For half a second at most."""

_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python itself puts into LC_CTYPE at its start, under LANG=C or without any locale (PEP 538)."""

_RESET = (
    b"\x18"  # cancels an escape sequence that was cut off
    b"\x1b[?2026l"  # end of a synchronized update, or the rest may never be drawn
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # mouse reports
    b"\x1b[?2004l\x1b[?1004l\x1b[?2048l"  # bracketed paste, focus reports, size reports
    b"\x1b[<u"  # the kitty keyboard protocol, kept per screen: before the screen is left
    b"\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"  # wrap lines, main screen, cursor, plain colours
)


def check_terminal() -> None:
    """Raise TerminalUnfit when a full-screen program cannot be shown, with what to do instead."""
    if not (os.isatty(sys.__stdin__.fileno()) if sys.__stdin__ else False):
        raise TerminalUnfit("The console needs a terminal to read keys from; use --headless to serve without one.")
    if not (os.isatty(sys.__stderr__.fileno()) if sys.__stderr__ else False):
        raise TerminalUnfit("The console needs a terminal to draw on; use --headless to serve without one.")
    kind = os.environ.get("TERM", "")
    if kind in ("", "dumb", "unknown"):
        raise TerminalUnfit(
            f"TERM={kind or '(unset)'} cannot show a full-screen program; "
            "set TERM to what your terminal is, or use --headless to serve without a screen."
        )


def draws_ascii_only(environ: Mapping[str, str]) -> bool:
    """True where the environment says so: on Linux's own console, and under a locale that is named and not UTF-8."""
    if environ.get("TERM") == "linux":
        return True
    named = [environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if named[1] in _COERCED:
        named[1] = ""
    locale = next(filter(None, named), "UTF-8")
    return "utf8" not in locale.lower().replace("-", "")


class EndSignals:
    """SIGINT, SIGTERM and SIGHUP, delivered to whoever waits, on any thread. Made and closed on the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Started by nohup: the operator asked that closing the terminal ends nothing.
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, _do_nothing)
        self._fd_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def wait(self, timeout_s: float | None = None) -> signal.Signals | None:
        """Wait for one of the signals; None when the time is over or `wake` was called."""
        ready, _, _ = select.select([self._reader], [], [], timeout_s)
        caught = self._reader.recv(256) if ready else b""
        return next((signal.Signals(byte) for byte in caught if byte in self._before), None)

    def wake(self) -> None:
        """End a `wait` from another thread."""
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def close(self) -> None:
        """Put back what was there before."""
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()


class Terminal:
    """The terminal as it was found, to be given back like that."""

    def __init__(self) -> None:
        self._fd = sys.__stdin__.fileno() if sys.__stdin__ else 0
        self._attributes: list[Any] | None = None
        self._name: str | None = None
        with contextlib.suppress(termios.error, OSError):
            self._attributes = termios.tcgetattr(self._fd)
            self._name = os.ttyname(self._fd)

    @property
    def is_lost(self) -> bool:
        """True once it was closed under us."""
        try:
            termios.tcgetattr(self._fd)
        except (termios.error, OSError):
            return True
        return False

    def restore(self) -> None:
        """Give it back although the program that drew on it cannot: never blocks, whoever reads it or not."""
        if self._attributes is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._fd, termios.TCSANOW, self._attributes)
        if self._name is not None:
            with contextlib.suppress(termios.error, OSError):
                # A fresh descriptor: making ours non-blocking would make the shell's so too.
                fd = os.open(self._name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
                try:
                    _write_reset(fd)
                finally:
                    os.close(fd)


def _write_reset(fd: int) -> None:
    """Write the reset to a descriptor that does not block, making room for it where nobody reads.

    Frames that nobody has read are stale, so they are dropped. A thread of the screen that is stuck in a write keeps
    the terminal to itself, and the kernel does not wake it for room made like this: a signal that does nothing does,
    and in the moment before it writes again we get in. Measured on Linux 6.18: the 3rd to the 23rd try.
    """
    for _ in range(RESET_TRIES):
        termios.tcflush(fd, termios.TCOFLUSH)
        with contextlib.suppress(BlockingIOError):
            if os.write(fd, _RESET) == len(_RESET):
                return
        _interrupt_other_threads()
        time.sleep(RESET_PAUSE_S)


def _interrupt_other_threads() -> None:
    if signal.getsignal(signal.SIGTERM) is not _do_nothing:
        return
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pthread_kill(thread.ident, signal.SIGTERM)


class Supervisor:
    """Ends the program when a signal comes or the terminal is lost, whatever the main thread is doing.

    First the server, so that every client is told; then the screen; and when the screen does not go, the process.
    """

    def __init__(
        self,
        signals: EndSignals,
        terminal: Terminal,
        stop_server: Callable[[], object],
        leave_screen: Callable[[], object],
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._signals, self._terminal = signals, terminal
        self._stop_server, self._leave_screen, self._end_process = stop_server, leave_screen, end_process
        self._screen_left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="homebase-supervisor", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def screen_left(self) -> None:
        """The full-screen program is gone: the main thread is in charge again, once an end under way is through."""
        self._screen_left.set()
        self._signals.wake()
        self._thread.join()

    def _watch(self) -> None:
        while not self._screen_left.is_set():
            caught = self._signals.wait(HANG_UP_CHECK_S)
            lost = self._terminal.is_lost
            if caught or lost:
                return self._end(lost)
        return None

    def _end(self, lost: bool) -> None:
        self._stop_server()
        lost = lost or self._terminal.is_lost
        with contextlib.suppress(RuntimeError):  # its loop may be gone already
            self._leave_screen()
        if self._screen_left.wait(0 if lost else LEAVE_SCREEN_S):
            return
        self._terminal.restore()
        self._end_process(1 if lost else 0)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """The wakeup descriptor carries the signal; a Python handler must stand for it to be written."""
