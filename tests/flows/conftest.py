"""Real processes, real terminals: what the end-to-end flows need to start, watch and end them.

Nothing here waits for a length of time: it waits for something to become true, until a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from fcntl import ioctl
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

T = TypeVar("T")

SCRIPT = Path(sys.executable).parent / "homebase-console"
READY_S = 45.0
"""Until the model is loaded: 3 s alone, far more on a box that runs other tests."""
DEADLINE_S = 15.0
LONG = 20_000
"""max_tokens of a stream that is meant to be still open when the test has done its part."""
PROMPT = "Write a Python class with many methods."


def wait_until(what: str, look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """The first truthy value of `look`; fails with `what` when there is none in time."""
    until = time.monotonic() + deadline_s
    while True:
        if seen := look():
            return seen
        if time.monotonic() > until:
            pytest.fail(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.03)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class OpenStream:
    """A streaming chat of a client that reads along on a thread of its own."""

    def __init__(self, url: str, **changes: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.ended = threading.Event()
        self.fault: Exception | None = None
        self.status: int | None = None
        body = {
            "model": "nano",
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": LONG,
            "temperature": 0,
            "stream": True,
        }
        self._thread = threading.Thread(target=self._read, args=(url, body | changes), daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        deltas = (choice["delta"] for event in list(self.events) for choice in event.get("choices", ()))
        return "".join(delta.get("content") or "" for delta in deltas)

    @property
    def error(self) -> dict[str, Any] | None:
        return next((event["error"] for event in list(self.events) if "error" in event), None)

    def wait_for_text(self) -> None:
        wait_until("a stream has text", lambda: self.text or self.ended.is_set())
        assert not self.ended.is_set(), (self.status, self.events, self.fault)

    def _read(self, url: str, body: dict[str, Any]) -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
                self.status = response.status_code
                if self.status != 200:
                    self.events.append(json.loads(response.read()))
                    return
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        self.events.append(json.loads(line[6:]))
        except httpx.HTTPError as error:
            self.fault = error
        finally:
            self.ended.set()


class Homebase:
    """Where one homebase-console is, and what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "homebase.toml"
        self.pid = 0

    @property
    def command(self) -> list[str]:
        return [str(SCRIPT), "--config", str(self.config), "--port", str(self.port)]

    @property
    def environ(self) -> dict[str, str]:
        """A home of its own; nothing of the developer's settings."""
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        home = {name: str(self.folder / "home") for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
        return kept | home | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "TZ": "UTC", "TEXTUAL_ANIMATIONS": "none"}

    @property
    def log_file(self) -> str:
        return "".join(path.read_text() for path in (self.folder / "home").rglob(f"homebase-{self.port}.log"))

    def get(self, path: str) -> dict[str, Any]:
        return httpx.get(f"{self.url}{path}", timeout=10).json()

    def snapshot(self) -> dict[str, Any]:
        return self.get("/homebase/snapshot")

    def status(self, path: str, timeout_s: float = 5) -> int | None:
        try:
            return httpx.get(f"{self.url}{path}", timeout=timeout_s).status_code
        except httpx.HTTPError:
            return None

    def wait_until(self, what: str, look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
        """The first truthy value of `look`; fails with `what` when there is none in time."""
        return wait_until(what, look, deadline_s)

    def wait_ready(self) -> None:
        wait_until(f"{self.url} is ready", lambda: self.status("/ready") == 200, READY_S)

    def open_stuck_stream(self) -> OpenStream:
        """A stream whose first step has begun and does not end."""
        stream = OpenStream(self.url)
        wait_until("it is admitted", lambda: self.snapshot()["engine"]["busy"])
        return stream

    def open_stream(self, **changes: Any) -> OpenStream:
        stream = OpenStream(self.url, **changes)
        stream.wait_for_text()
        return stream

    def open_long_prefill(self) -> OpenStream:
        """A stream that is in prefill, and will be for some ten seconds."""
        text = " ".join(f"fact {number}: value {number * 7 % 1013}." for number in range(1500))
        stream = OpenStream(self.url, messages=[{"role": "user", "content": text}])
        wait_until("it is in prefill", lambda: any(row["phase"] == "prefill" for row in self.snapshot()["streams"]))
        return stream

    def is_port_free(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                return False
            return True


BLOCKED = """
import sys, time
from server.engine.step import StepRunner

StepRunner.run_step = lambda *_: time.sleep(60)
from console.cli import main
sys.exit(main())
"""
"""Runs the command with an engine whose first step takes a minute."""


class Headless(Homebase):
    """`homebase-console --headless`, with its stderr in a file."""

    def __init__(self, folder: Path, arguments: tuple[str, ...] = (), launcher: str | None = None) -> None:
        super().__init__(folder)
        command = [sys.executable, "-c", launcher, *self.command[1:]] if launcher else self.command
        self._stderr = (folder / "stderr.txt").open("wb")
        self.process = subprocess.Popen(
            [*command, "--headless", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            env=self.environ,
            cwd=folder,
        )
        self.pid = self.process.pid

    @property
    def said(self) -> str:
        return (self.folder / "stderr.txt").read_text()

    def end(self, number: signal.Signals, deadline_s: float = 10) -> tuple[int, float]:
        """Send a signal; exit code and seconds until the process was gone."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(deadline_s), time.monotonic() - began

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self._stderr.close()


class Tmux:
    """A terminal of a given size with a shell in it, on a tmux server of its own."""

    def __init__(self, folder: Path, environ: Mapping[str, str], width: int, height: int) -> None:
        self._socket = f"/tmp/homebase-flow-{os.getpid()}-{free_port()}"
        self._environ = dict(environ)
        self._run(
            "new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(folder), "bash --norc --noprofile"
        )

    def type(self, *keys: str) -> None:
        """Press keys by tmux's names."""
        self._run("send-keys", *keys)

    def write(self, text: str) -> None:
        """Type text as it is."""
        self._run("send-keys", "-l", text)

    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def wait_for(self, pattern: str, deadline_s: float = DEADLINE_S) -> re.Match[str]:
        """A match of the pattern on the screen."""
        until = time.monotonic() + deadline_s
        while not (found := re.search(pattern, self.screen())):
            if time.monotonic() > until:
                pytest.fail(f"not on the screen within {deadline_s:.0f} s: {pattern}\n{self.screen()}")
            time.sleep(0.03)
        return found

    @property
    def modes(self) -> str:
        """Alternate screen, mouse and cursor, each 1 or 0; a clean terminal is 001."""
        return self._run("display-message", "-p", "#{alternate_on}#{mouse_any_flag}#{cursor_flag}").strip()

    def child_pid(self) -> int:
        """The process that runs in the shell."""
        shell = self._run("list-panes", "-F", "#{pane_pid}").strip()

        def look() -> list[str]:
            return Path(f"/proc/{shell}/task/{shell}/children").read_text().split()

        return int(wait_until("the shell runs a program", look)[0])

    def close_pane(self) -> None:
        self._run("kill-pane")

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("kill-server")
        Path(self._socket).unlink(missing_ok=True)

    def _run(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=self._environ, timeout=30).stdout


class Console(Homebase):
    """homebase-console with its screen, in tmux."""

    def __init__(self, folder: Path, width: int = 120, height: int = 40, config: str = "") -> None:
        super().__init__(folder)
        if config:
            self.config.write_text(config)
        self.terminal = Tmux(folder, self.environ, width, height)

    def start(self) -> None:
        self.terminal.wait_for(r"bash.*[$#]")
        line = " ".join(self.command)
        self.terminal.write(
            f"stty -a > {self.folder}/stty.before; {line}; echo RC=$?; stty -a > {self.folder}/stty.after"
        )
        self.terminal.type("Enter")
        assert "SERVING" in self.terminal.wait_for(r"SERVING|RC=\d", READY_S).group(), self.terminal.screen()
        self.pid = self.terminal.child_pid()

    def wait_gone(self, deadline_s: float = 8) -> None:
        wait_until("the process is gone", lambda: not Path(f"/proc/{self.pid}").exists(), deadline_s)

    def check_left_clean(self, code: int = 0) -> None:
        """The exit code, and a terminal as it was before."""
        self.terminal.wait_for(rf"RC={code}\b")
        assert self.terminal.modes == "001"
        before, after = (self.folder / f"stty.{when}" for when in ("before", "after"))
        wait_until("stty has been asked", lambda: after.exists() and after.stat().st_size)
        assert after.read_text() == before.read_text()
        assert self.is_port_free()

    def close(self) -> None:
        if self.pid and Path(f"/proc/{self.pid}").exists():
            os.kill(self.pid, signal.SIGKILL)
        self.terminal.close()


class PtyConsole(Homebase):
    """homebase-console on a pseudo-terminal whose other end is in the test's hands."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], launcher: str | None, term: str) -> None:
        super().__init__(folder)
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        command = [sys.executable, "-c", launcher, *self.command[1:]] if launcher else self.command
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=self.environ | {"TERM": term},
            cwd=folder,
            start_new_session=True,
        )
        os.close(slave)
        self.pid = self.process.pid
        self._output = b""
        self._draining = threading.Event()
        self._thread: threading.Thread | None = None

    def drain(self) -> None:
        """Read the terminal's output from now on, until `stop_draining`."""
        self._draining.set()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop_draining(self) -> None:
        self._draining.clear()
        assert self._thread is not None
        self._thread.join(5)

    @property
    def received(self) -> int:
        """Bytes of output read so far."""
        return len(self._output)

    @property
    def is_stuck(self) -> bool:
        """True when there is output to read, and a second look finds not a byte more."""
        waiting = self._count_waiting()
        return waiting > 2000 and not select.select([], [], [], 1.5)[0] and self._count_waiting() == waiting

    def rest(self) -> str:
        """All output, to the last byte; the process is gone."""
        with contextlib.suppress(OSError):
            while select.select([self.master], [], [], 0.2)[0] and (data := os.read(self.master, 65536)):
                self._output += data
        return self._output.decode(errors="replace")

    def wait_for_output(self, text: str) -> None:
        wait_until(f"{text!r} is written", lambda: text.encode() in self._output)

    def press(self, keys: str) -> None:
        """Type bytes as a terminal sends them."""
        os.write(self.master, keys.encode())

    def hang_up(self) -> None:
        """Close the terminal."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        self._draining.clear()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        if self.master >= 0:
            os.close(self.master)

    def _count_waiting(self) -> int:
        return struct.unpack("i", ioctl(self.master, termios.FIONREAD, bytes(4)))[0]

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self._draining.is_set():
                if select.select([self.master], [], [], 0.1)[0]:
                    self._output += os.read(self.master, 65536)


@pytest.fixture
def headless(tmp_path: Path) -> Iterator[Callable[..., Headless]]:
    """Starts servers without a screen; they are gone after the test."""
    with contextlib.ExitStack() as servers:

        def start(
            *arguments: str,
            config: str = "",
            launcher: str | None = None,
            ready: bool = True,
            blocked: bool = False,
        ) -> Headless:
            if config:
                (tmp_path / "homebase.toml").write_text(config)
            server = Headless(tmp_path, arguments, BLOCKED if blocked else launcher)
            servers.callback(server.close)
            if ready:
                server.wait_ready()
            return server

        yield start


@pytest.fixture(scope="module")
def file_headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Headless]]:
    """Starts servers without a screen that all tests of a file share; they are gone after its last."""
    with contextlib.ExitStack() as servers:

        def start(*arguments: str, config: str = "") -> Headless:
            folder = tmp_path_factory.mktemp("homebase")
            if config:
                (folder / "homebase.toml").write_text(config)
            server = Headless(folder, arguments)
            servers.callback(server.close)
            server.wait_ready()
            return server

        yield start


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Callable[..., Console]]:
    """Starts consoles in tmux; they are gone after the test."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    with contextlib.ExitStack() as consoles:

        def start(**settings: Any) -> Console:
            started = Console(tmp_path, **settings)
            consoles.callback(started.close)
            started.start()
            return started

        yield start


@pytest.fixture
def pty_console(tmp_path: Path) -> Iterator[Callable[..., PtyConsole]]:
    """Starts consoles on a pseudo-terminal; they are gone after the test."""
    with contextlib.ExitStack() as consoles:

        def start(
            *arguments: str, launcher: str | None = None, term: str = "xterm-256color", blocked: bool = False
        ) -> PtyConsole:
            started = PtyConsole(tmp_path, arguments, BLOCKED if blocked else launcher, term)
            consoles.callback(started.close)
            return started

        yield start
