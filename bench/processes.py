"""Starting the programs that are measured, side by side, and asking the system what they cost."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import tomli_w

READY_DEADLINE_S = 120


class Program:
    """One started program; `pid` is the process that serves, `model` the name that requests use."""

    def __init__(
        self, name: str, model: str, command: list[str], port: int, ready_path: str, *, terminal: bool = False
    ) -> None:
        self.name, self.model, self.port = name, model, port
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the program
        self._drain: threading.Thread | None = None
        self._master: int | None = None
        self._process = self._start_in_terminal(command) if terminal else self._start(command)
        self.ready_s = self._wait_ready(ready_path)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def resident_bytes(self) -> int:
        """Resident memory now."""
        return psutil.Process(self.pid).memory_info().rss

    def read_log(self) -> str:
        """What it wrote to stdout and stderr, when it has no terminal."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def stop(self) -> None:
        """End it politely, then not."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._master is not None:
            os.close(self._master)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)

    def _start_in_terminal(self, command: list[str]) -> subprocess.Popen[bytes]:
        self._master, slave = pty.openpty()
        _set_size(slave, columns=120, rows=40)
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self._drain = threading.Thread(target=_read_for_ever, args=(self._master,), daemon=True)
        self._drain.start()
        return process

    def _wait_ready(self, path: str) -> float:
        started = time.perf_counter()
        while time.perf_counter() - started < READY_DEADLINE_S:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}: {self._tail()}")
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=2, trust_env=False).status_code == 200:
                    return time.perf_counter() - started
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"{self.name} was not ready in {READY_DEADLINE_S} s: {self._tail()}")

    def _tail(self) -> str:
        return self.read_log()[-2000:]


def start_homebase(model: str, port: int, config: Path, *, terminal: bool, max_in_flight: int = 4) -> Program:
    """homebase-console on a configuration of its own, in a 120x40 terminal or headless."""
    history = {"path": str(config.with_name("history.sqlite3"))}
    config.write_text(tomli_w.dumps({"policy": {"max_in_flight": max_in_flight}, "history": history}))
    command = [
        str(Path(sys.executable).parent / "homebase-console"),
        *("--config", str(config), "--model", model, "--port", str(port)),
        *(() if terminal else ("--headless",)),
    ]
    name = "homebase TUI" if terminal else "homebase headless"
    return Program(name, Path(model).name, command, port, "/ready", terminal=terminal)


def start_mlx_lm(model: str, port: int) -> Program:
    """mlx-lm's own server with its defaults."""
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", model, "--port", str(port)]
    return Program("mlx_lm.server", model, command, port, "/health")


class EngineLoop:
    """`engine_loop.py` in a process of its own."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "engine_loop.py"), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._read() != "ready":
            raise RuntimeError("the engine did not load")

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One measurement."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _set_size(descriptor: int, *, columns: int, rows: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read_for_ever(descriptor: int) -> None:
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        return
