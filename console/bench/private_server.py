"""A headless server of the bench's own, on a free port and with a homebase.toml that it can rewrite.

It ends with the bench, whatever ends that: its standard input is a pipe that nobody else holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import tomli_w

from console.bench.fan_out import Mode
from server.errors import StartupError
from server.policy import Policy

LAUNCHER = """
import os, signal, sys, threading
from console.cli import main

def end_with_the_bench():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end_with_the_bench, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""
"""Runs the command, and ends it once the pipe at its standard input is closed."""

_END_S = 15.0
"""Until a server that was asked to end is killed; streams of its clients are closed by then."""
_NOTICE_S = 20.0
"""Until a rewritten homebase.toml must be in force; it takes a second at most."""
_LOOK_S = 0.1


def build_config(policy: Policy, port: int, mode: Mode, streams: int) -> dict[str, Any]:
    """The homebase.toml of one half of the experiment, from the operator's own.

    Nothing in it reaches other machines, other servers or the operator's files, whatever theirs says.
    """
    tables: dict[str, Any] = _drop_none(msgspec.to_builtins(policy))
    limits = tables["policy"]
    limits["overflow_to"] = ""
    if limits["limit_behavior"] == "overflow":
        limits["limit_behavior"] = "fail"
    if mode == "off":
        limits |= {"max_in_flight": streams, "context_budget_tokens": 0, "min_decode_tps": 0.0, "clients": {}}
        limits["subagents"] |= {"max_concurrent": 64, "sampling_limit": 64, "max_depth": 16}
    return {
        "server": {"host": "127.0.0.1", "port": port},
        "model": tables["model"],
        "engine": tables["engine"] | {"prefix_cache_disk_gib": 0.0},
        "policy": limits,
        "history": {"off": True},
    }


class PrivateServer:
    """The process, from its start to its end."""

    def __init__(self, policy: Policy, streams: int) -> None:
        """`streams` is the widest fan-out that will be run."""
        self._policy, self._streams = policy, streams
        self._folder = tempfile.TemporaryDirectory(prefix="homebase-bench-")
        self._config = Path(self._folder.name) / "homebase.toml"
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._write("off")
        self._log = (Path(self._folder.name) / "log").open("wb+")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", LAUNCHER, "--headless", "--config", str(self._config)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl+C is for the bench, which ends its streams first
        )

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    async def wait_ready(self) -> None:
        """Until the model is loaded, however long that takes. Raises StartupError when it never will be."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
            while True:
                if self._process.poll() is not None:
                    raise StartupError(f"The server for the bench could not start: {self._read_reason()}")
                try:
                    if (await http.get(f"{self.url}/ready")).status_code == 200:
                        return
                    seen: Mapping[str, Any] = (await http.get(f"{self.url}/homebase/snapshot")).json()
                    if seen["model"]["state"] == "failed":
                        raise StartupError(f"The server for the bench has no model: {seen['model']['detail']}")
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(_LOOK_S)

    async def apply(self, mode: Mode) -> None:
        """Put one half's limits in force, as an edit of its file."""
        etag = self._write(mode)
        deadline = time.monotonic() + _NOTICE_S
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            while (policy := (await http.get(f"{self.url}/homebase/snapshot")).json()["policy"])["etag"] != etag:
                if time.monotonic() > deadline:
                    raise StartupError(f"The limits for the bench did not come into force: {policy['problem']}")
                await asyncio.sleep(_LOOK_S)

    def stop(self) -> None:
        """End the process and remove its folder; no server is left after this."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._log.close()
        self._folder.cleanup()

    def _write(self, mode: Mode) -> str:
        data = tomli_w.dumps(build_config(self._policy, self._port, mode, self._streams)).encode()
        written = self._config.with_suffix(".new")
        written.write_bytes(data)
        os.replace(written, self._config)
        return hashlib.sha256(data).hexdigest()

    def _read_reason(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return lines[-1].removeprefix("homebase-console: ")


def _drop_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no word for a limit that is left to another."""
    return {
        name: _drop_none(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        for name, value in table.items()
        if value is not None
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
