"""Two servers: one without a model of its own in front of one with nano, which is stopped and killed under load."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.flows.conftest import Headless, OpenStream

SILENCE_S = 1.0
STREAMS = 3


@pytest.fixture(scope="module")
def behind(file_headless: Callable[..., Headless]) -> Headless:
    """The server with the model; the last test kills it."""
    return file_headless(config="[policy]\nmax_in_flight = 8\n")


@pytest.fixture(scope="module")
def front_config(behind: Headless) -> str:
    """Of a server that clients ask, with slots for what the other one does."""
    return f"""
[model]
path = ""
[policy]
max_in_flight = {STREAMS}
[aliases]
gpt-5 = "nano"
[[upstreams]]
name = "behind"
base_url = "{behind.url}/v1"
models = ["nano"]
governed = true
silence_timeout_s = {SILENCE_S}
"""


@pytest.fixture(scope="module")
def front(file_headless: Callable[..., Headless], front_config: str) -> Headless:
    return file_headless(config=front_config)


def ask(server: Headless, **fields: Any) -> httpx.Response:
    body = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body | fields, timeout=30)


def is_idle(server: Headless) -> bool:
    snapshot = server.snapshot()
    flying = [each["in_flight"] for each in snapshot["upstreams"]]
    return not snapshot["admission"]["in_flight"] and not any(flying) and all(s["outcome"] for s in snapshot["streams"])


def open_streams(front: Headless) -> list[OpenStream]:
    streams = [front.open_stream() for _ in range(STREAMS)]
    assert front.snapshot()["admission"]["in_flight"] == STREAMS
    return streams


def test_a_server_without_a_model_answers_with_another_ones(front: Headless, behind: Headless) -> None:
    snapshot = front.snapshot()
    assert (snapshot["model"]["state"], snapshot["state"], front.status("/health")) == ("none", "serving", 200)
    names = [model["id"] for model in front.get("/v1/models")["data"]]
    assert names == ["gpt-5", "nano"]
    answer, direct = ask(front, model="gpt-5", seed=1).json(), ask(behind, seed=1).json()
    assert answer["choices"] == direct["choices"]
    assert ask(front, model="unheard-of").status_code == 404
    row = next(stream for stream in front.snapshot()["streams"] if stream["upstream"])
    assert (row["upstream"], row["model"], row["outcome"]) == ("behind", "nano", "length")
    assert (row["prompt_tokens"], row["completion_tokens"]) == tuple(
        answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    )
    front.open_stream(max_tokens=200).ended.wait(30)
    rates = [s["decode_tps"] for s in front.snapshot()["streams"] if s["streaming"] and s["outcome"]]
    assert rates
    assert all(rate and rate > 0 for rate in rates)


def test_one_that_stands_still_and_goes_on_again(front: Headless, behind: Headless) -> None:
    streams = open_streams(front)
    refused = ask(front)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "in_flight_full")
    os.kill(behind.pid, signal.SIGSTOP)
    try:
        for stream in streams:
            assert stream.ended.wait(SILENCE_S + 10)
            assert stream.error is not None
            assert stream.error["code"] == "upstream_silent"
        front.wait_until("every slot is free", lambda: is_idle(front))
        asked = ask(front)
        assert asked.status_code in (502, 504)
        assert asked.json()["error"]["code"] in ("upstream_silent", "upstream_unavailable")
        assert front.status("/health") == 200
    finally:
        os.kill(behind.pid, signal.SIGCONT)
    front.wait_until("it answers again", lambda: ask(front).status_code == 200, 40)
    front.wait_until("it is up", lambda: front.snapshot()["upstreams"][0]["state"] == "up")
    behind.wait_until("it has let go of what nobody reads", lambda: is_idle(behind))


def test_a_client_that_leaves_ends_the_work_behind(front: Headless, behind: Headless) -> None:
    body = {"model": "nano", "messages": [{"role": "user", "content": "go"}], "max_tokens": 20_000, "stream": True}
    with httpx.stream("POST", f"{front.url}/v1/chat/completions", json=body, timeout=30) as response:
        first = next(line for line in response.iter_lines() if '"content"' in line)
        assert json.loads(first.removeprefix("data: "))
    for server in (front, behind):
        server.wait_until("nothing is left", lambda server=server: is_idle(server))


def test_the_end_of_the_front_is_told(headless: Callable[..., Headless], front_config: str) -> None:
    front = headless(config=front_config)
    stream = front.open_stream()
    code, seconds = front.end(signal.SIGTERM)
    assert code == 0
    assert seconds < 6
    assert stream.ended.wait(5)
    assert stream.error is not None
    assert "shutting down" in stream.error["message"]


def test_one_that_is_killed_and_comes_not_back(front: Headless, behind: Headless) -> None:
    streams = open_streams(front)
    os.kill(behind.pid, signal.SIGKILL)
    for stream in streams:
        assert stream.ended.wait(10)
        assert stream.error is not None
        assert stream.error["code"] == "upstream_failed"
    front.wait_until("every slot is free", lambda: is_idle(front))
    ended = [stream["outcome"] for stream in front.snapshot()["streams"]]
    assert ended[-STREAMS:] == ["failed"] * STREAMS
    answers = [ask(front) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [502] * 4
    assert answers[-1].json()["error"]["code"] == "upstream_unavailable"
    assert ask(front, stream=True).json()["error"]["code"] == "upstream_unavailable"
    assert front.snapshot()["upstreams"][0]["state"] == "down"
    assert is_idle(front)
