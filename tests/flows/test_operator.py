"""The operator's API of a real server: events beside streams, readers that do not read, and limits that are edited."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from tests.flows.conftest import Headless

CONFIG = """\
# this machine is Ada's
[policy]
max_in_flight = 2   # a parent and its child
"""


class Follower:
    """A client of the events that reads along on a thread of its own until it is told to leave."""

    def __init__(self, url: str, last_event_id: str = "") -> None:
        self.events: list[dict[str, Any]] = []
        self._leaving = threading.Event()
        headers = {"last-event-id": last_event_id} if last_event_id else {}
        self._thread = threading.Thread(target=self._read, args=(url, headers), daemon=True)
        self._thread.start()

    def names(self) -> list[str]:
        return [event["event"] for event in list(self.events)]

    def find(self, name: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["event"] == name]

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(15)
        assert not self._thread.is_alive()

    def _read(self, url: str, headers: dict[str, str]) -> None:
        event: dict[str, Any] = {}
        with httpx.stream("GET", f"{url}/homebase/events", headers=headers, timeout=30) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if name:
                    event[name] = json.loads(value) if name == "data" else value
                elif event:
                    if "event" in event:
                        self.events.append(event)
                    event = {}
                if self._leaving.is_set():
                    return


def follow_without_reading(port: int) -> socket.socket:
    """A client of the events that takes nothing, with as little room for it as the system gives."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET /homebase/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return client


def test_events_tell_of_streams_as_they_run_and_go_on_after_the_last_id(headless: Callable[..., Headless]):
    server = headless(config=CONFIG)
    follower = Follower(server.url)
    server.wait_until("the first snapshot", lambda: follower.find("snapshot"))
    stream, other = server.open_stream(), server.open_stream()

    def sees_both_decode() -> bool:
        newest = follower.find("snapshot")[-1]["data"]
        return [row["phase"] for row in newest["streams"]] == ["decode"] * 2

    server.wait_until("both are seen decoding", sees_both_decode)
    refused = httpx.post(
        f"{server.url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}, timeout=30
    )
    assert refused.status_code == 429
    (told,) = server.wait_until("the refusal is told", lambda: follower.find("refused"))
    assert told["data"]["message"] == refused.json()["error"]["message"]
    follower.leave()
    row = server.snapshot()["streams"][0]
    stopped = httpx.post(f"{server.url}/homebase/streams/{row['id']}/stop", timeout=10)
    assert (stopped.status_code, stopped.json()["phase"]) == (200, "decode")
    assert stream.ended.wait(10)
    again = Follower(server.url, told["id"])
    (ended,) = server.wait_until("the end is told", lambda: again.find("stream_ended"))
    assert (ended["data"]["request_id"], ended["data"]["outcome"]) == (row["id"], "cancelled")
    assert not again.find("refused")
    assert "gap" not in again.names()
    assert int(ended["id"]) > int(told["id"])
    again.leave()
    lost = Follower(server.url, "12")
    server.wait_until("a gap is told", lambda: "gap" in lost.names())
    assert lost.find("gap")[0]["data"]["missed"] is None
    lost.leave()
    assert not other.ended.is_set()


def test_readers_that_do_not_read_hold_up_no_stream_and_no_other_reader(headless: Callable[..., Headless]):
    server = headless(config=CONFIG)
    silent = [follow_without_reading(server.port) for _ in range(4)]
    streams = [server.open_stream(), server.open_stream()]
    follower = Follower(server.url)

    def decoded() -> int:
        return server.snapshot()["rates"]["decode_tokens_total"]

    before = decoded()
    server.wait_until("both go on", lambda: decoded() > before + 200, 60)
    # By then far more was told than their sockets hold.
    server.wait_until("others are told", lambda: len(follower.find("snapshot")) > 20)
    assert not any(stream.ended.is_set() for stream in streams)
    assert server.snapshot()["admission"]["in_flight"] == 2
    follower.leave()
    for client in silent:
        client.close()
    assert "Traceback" not in server.said


def test_limits_are_put_into_the_file_that_they_were_read_from(headless: Callable[..., Headless]):
    server = headless(config=CONFIG)
    url = f"{server.url}/homebase/policy"
    etag = httpx.get(url).headers["etag"]
    by_hand = CONFIG.replace("= 2", "= 4").replace("Ada's", "Ada's and Bob's")
    server.config.write_text(by_hand)
    stale = httpx.put(url, json={"policy.max_in_flight": 3}, headers={"if-match": etag})
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "policy_conflict")
    assert stale.json()["differs"] == [{"key": "policy.max_in_flight", "now": 4, "asked": 3}]
    assert server.config.read_text() == by_hand
    follower = Follower(server.url)
    server.wait_until("it follows", lambda: follower.find("snapshot"))
    fresh = httpx.put(url, json={"policy.max_in_flight": 1}, headers={"if-match": stale.headers["etag"]})
    assert fresh.status_code == 200
    assert fresh.json()["changes"][0] | {"effect": ""} == {
        "key": "policy.max_in_flight", "old": 4, "new": 1, "in_force": 1, "effect": ""
    }  # fmt: skip
    assert server.config.read_text() == by_hand.replace("= 4", "= 1")
    (told,) = server.wait_until("the change is told", lambda: follower.find("policy_changed"))
    assert (told["data"]["origin"], told["data"]["by"]) == ("api", "127.0.0.1")
    assert told["data"]["changes"] == [["policy.max_in_flight", "4", "1"]]
    follower.leave()
    foreign = httpx.put(url, json={"policy.max_in_flight": 3}, headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert server.snapshot()["admission"]["max_in_flight"] == 1
    assert "saved over HTTP by 127.0.0.1: policy.max_in_flight 4 -> 1" in server.said
