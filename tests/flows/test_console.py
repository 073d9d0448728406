"""The whole program in a real terminal: watching a stream, editing a limit, and leaving the terminal clean."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from tests.flows.conftest import Console, OpenStream

CONFIG = """\
# our box
[policy]
max_in_flight = 2  # parent + 1
"""


def check_told(stream: OpenStream) -> None:
    """The client of a stream that was cut has read an error that says why."""
    assert stream.ended.wait(8)
    assert stream.fault is None
    assert stream.error is not None
    assert "shutting down" in stream.error["message"]


def test_an_operator_watches_a_stream_edits_a_limit_and_quits(console: Callable[..., Console]):
    homebase = console(config=CONFIG)
    terminal = homebase.terminal
    stream = homebase.open_stream()

    shown = terminal.wait_for(r"out +(\d[\d,]*) of 20,000").group(1)
    terminal.wait_for(rf"out +(?!{shown}\b)\d[\d,]* of 20,000")
    terminal.wait_for(r"in flight 1 of 2")
    terminal.wait_for(r"decode [1-9][\d.,]* tok/s")

    edit_max_in_flight(homebase, "1")
    assert homebase.config.read_text() == CONFIG.replace("max_in_flight = 2", "max_in_flight = 1")

    refused = httpx.post(
        f"{homebase.url}/v1/chat/completions",
        json={"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
        headers={"user-agent": "second-agent/1.0"},
        timeout=10,
    )
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "in_flight_full"
    terminal.type("1")
    terminal.wait_for(r"second-agent")
    terminal.wait_for(r"1 of 1")

    terminal.type("C-q")
    terminal.wait_for("Cut and quit")
    assert not stream.ended.is_set(), "quitting asks first while a stream is open"
    leave_through_the_dialog(homebase)
    homebase.wait_gone()
    check_told(stream)
    homebase.check_left_clean()


def edit_max_in_flight(homebase: Console, value: str) -> None:
    """Change the limit with the keyboard alone and save it, all keys in one bunch, as a slow line delivers them."""
    homebase.terminal.type("3", "Enter", "C-u", value, "Enter", "s")
    homebase.wait_until("the file is written", lambda: f"max_in_flight = {value}" in homebase.config.read_text())
    homebase.terminal.wait_for("nothing unsaved")


def leave_through_the_dialog(homebase: Console) -> None:
    """Quitting stands on Stay; the other button cuts the streams."""
    homebase.terminal.type("Tab", "Enter")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_time_and_leaves_the_terminal_clean(
    console: Callable[..., Console], number: signal.Signals
):
    homebase = console(width=80, height=24)
    stream = homebase.open_stream()
    homebase.terminal.wait_for("decode")
    os.kill(homebase.pid, number)
    homebase.wait_gone(6)
    check_told(stream)
    homebase.check_left_clean()


def test_closing_the_terminal_ends_it_and_frees_the_port(console: Callable[..., Console]):
    homebase = console()
    stream = homebase.open_stream()
    homebase.terminal.close_pane()
    homebase.wait_gone(6)
    check_told(stream)
    assert homebase.is_port_free()
