"""One server on nano for all tests of a file, and Node's clients run against it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
INSTALL = "npm install --prefix tests/flows/clients"


@pytest.fixture(scope="module")
def server(file_headless: Callable[..., Any]) -> Any:
    return file_headless()


@pytest.fixture
def idle(server: Any) -> Any:
    """The server with nothing in flight, before the test and after it."""
    _wait_idle(server)
    yield server
    _wait_idle(server)


@pytest.fixture(scope="session")
def node() -> str:
    """The path of Node, where it and the packages of package.json are installed."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("Node is not installed")
    if not (FOLDER / "node_modules" / "openai").is_dir():
        pytest.skip(f"the clients for Node are not installed: {INSTALL}")
    return path


@pytest.fixture
def see(idle: Any, node: str) -> Callable[[str, str], Any]:
    """What a case of a script says that its client saw."""

    def run(script: str, case: str) -> Any:
        command = [node, str(FOLDER / script), case, idle.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return run


def _wait_idle(server: Any) -> None:
    server.wait_until("nothing is in flight", lambda: not server.snapshot()["admission"]["in_flight"])
