"""What keeps the console from starting is one sentence on a terminal that nothing was drawn on."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.flows.conftest import PtyConsole


def check_one_sentence(console: PtyConsole, *words: str) -> None:
    assert console.process.wait(20) == 2
    said = console.rest()
    assert "\x1b" not in said, "something was drawn"
    assert said.startswith("homebase-console: ")
    assert said.count("\n") == 1
    for word in words:
        assert word in said


def test_a_broken_file(pty_console: Callable[..., PtyConsole], tmp_path: Path):
    (tmp_path / "homebase.toml").write_text("[policy]\nmax_in_fligt = 2\n")
    check_one_sentence(pty_console(), "homebase.toml:2", "max_in_flight")


def test_a_port_in_use(pty_console: Callable[..., PtyConsole]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check_one_sentence(pty_console("--port", str(port)), f"127.0.0.1:{port} is in use by another program", "--port")


def test_a_model_that_is_not_there(pty_console: Callable[..., PtyConsole]):
    check_one_sentence(pty_console("--model", "/no/such/model"), "/no/such/model", "nano")


def test_linuxs_own_console_is_drawn_in_ascii_with_no_mouse_where_none_is_wanted(
    pty_console: Callable[..., PtyConsole], tmp_path: Path
):
    (tmp_path / "homebase.toml").write_text("[console]\nmouse = false\n")
    console = pty_console(term="linux")
    console.drain()
    console.wait_for_output("* SERVING")
    stream = console.open_stream()
    console.wait_for_output("decode")
    os.kill(console.pid, signal.SIGTERM)
    assert console.process.wait(10) == 0
    assert stream.ended.wait(5)
    console.stop_draining()
    output = console.rest()
    assert not set("●━┏╭█") & set(output)
    assert not re.findall(r"\x1b\[\?100[0236]h", output), "the mouse was taken"
    assert "\x1b[2J" not in output, "it flickers when the whole is cleared"


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_a_dumb_terminal(pty_console: Callable[..., PtyConsole], kind: str):
    check_one_sentence(pty_console(term=kind), "TERM=", "--headless")
