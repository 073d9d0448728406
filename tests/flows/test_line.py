"""The line for a place, and a parent that is gone, on the real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.flows.conftest import Headless

NO_END = {"0": -100, "2": -100}
"""Nano's tokens at which an answer would end."""

CHILD = {"x-homebase-session": "c", "x-homebase-parent-session": "p"}


def body(**changes: Any) -> dict[str, Any]:
    asked = {"model": "nano", "messages": [{"role": "user", "content": "Write a class."}], "logit_bias": NO_END}
    return asked | {"max_tokens": 4000, "stream": True} | changes


def list_rows(server: Headless, **wanted: Any) -> list[dict[str, Any]]:
    rows = server.snapshot()["streams"]
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def test_a_request_waits_and_is_let_in_by_a_policy_that_is_edited(headless: Callable[..., Headless]) -> None:
    config = '[policy]\nmax_in_flight = 1\nlimit_behavior = "queue"\n'
    server = headless(config=config)
    running = server.open_stream(logit_bias=NO_END)
    with ThreadPoolExecutor() as pool:
        url = f"{server.url}/v1/chat/completions"
        waiting = pool.submit(httpx.post, url, json=body(max_tokens=4, stream=False), timeout=60)
        server.wait_until("a request is in line", lambda: list_rows(server, queue_position=1))
        assert server.snapshot()["admission"]["in_flight"] == 1
        (file,) = server.folder.glob("*.toml")
        file.write_text(file.read_text().replace("max_in_flight = 1", "max_in_flight = 2"))
        answer = waiting.result(timeout=30)
    assert answer.status_code == 200, answer.text
    assert not running.ended.is_set(), "it was the edit that let it in"


def test_a_child_is_cancelled_with_its_parent(headless: Callable[..., Headless]) -> None:
    server = headless(config="[policy]\nmax_in_flight = 3\n")
    url = f"{server.url}/v1/chat/completions"
    with httpx.Client(timeout=60) as client:
        with client.stream("POST", url, json=body(), headers={"x-homebase-session": "p"}) as parent:
            child = client.build_request("POST", url, json=body(), headers=CHILD)
            answer = client.send(child, stream=True)
            assert (parent.status_code, answer.status_code) == (200, 200)
        text = answer.read().decode()
        answer.close()
    assert "stream_stopped" in text
    assert "cancelled with its parent" in text
    (row,) = list_rows(server, session="c")
    assert row["outcome_detail"].startswith("cancelled with its parent")
