"""The stream of events: what is told, in which order, to whom it goes on from where, and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from server.api.operator.events import Place, name_event, tell
from server.api.operator.snapshots import SnapshotFrames
from server.events import (
    EventRing,
    LogLine,
    ModelStateChanged,
    PolicyChanged,
    PolicyProblem,
    Refused,
    StreamEnded,
)

Event = dict[str, Any]
FIRST = 7_000_000


def log_line(text: str) -> LogLine:
    return LogLine(1.0, "info", "api", text)


def read(data: bytes) -> list[Event]:
    """The events of a stream's bytes; comments are none."""
    events: list[Event] = []
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            number = int(fields["id"]) if "id" in fields else None
            events.append({"event": fields["event"], "id": number, "data": json.loads(fields["data"])})
    return events


def told(data: bytes) -> list[tuple[str, Any]]:
    """Name and what stands out of each event."""
    return [
        (event["event"], event["data"].get("missed", event["data"].get("message", event["id"]))) for event in read(data)
    ]


def fill(ring: EventRing, *texts: str) -> None:
    for text in texts:
        ring.publish(log_line(text))


def test_a_new_reader_is_told_what_comes_and_nothing_twice() -> None:
    ring = EventRing()
    fill(ring, "before")
    place = Place(ring, FIRST)
    assert place.take() == b""
    fill(ring, "a", "b")
    assert told(place.take()) == [("log", "a"), ("log", "b")]
    assert place.take() == b""
    assert place.id == FIRST + 3


@pytest.mark.parametrize(
    ("last_id", "expected"),
    [
        ("0", [("log", "a"), ("log", "b"), ("log", "c")]),
        (str(FIRST + 1), [("log", "b"), ("log", "c")]),
        (f" {FIRST + 3} ", []),
        (str(FIRST), [("log", "a"), ("log", "b"), ("log", "c")]),
        # Of another run, from the future, or no id of ours.
        (str(FIRST - 5), [("gap", None), ("log", "a"), ("log", "b"), ("log", "c")]),
        (str(FIRST + 4), [("gap", None), ("log", "a"), ("log", "b"), ("log", "c")]),
        ("x" * 1000, [("gap", None), ("log", "a"), ("log", "b"), ("log", "c")]),
        ("9" * 5000, [("gap", None), ("log", "a"), ("log", "b"), ("log", "c")]),
    ],
)
def test_a_reader_goes_on_after_its_last_id_or_is_told_that_it_cannot(last_id: str, expected: Any) -> None:
    ring = EventRing()
    fill(ring, "a", "b", "c")
    place = Place(ring, FIRST, last_id)
    assert told(place.take()) == expected
    assert place.take() == b""


def test_what_the_ring_has_let_go_is_a_gap_that_says_how_much() -> None:
    ring = EventRing(2)
    place = Place(ring, FIRST)
    fill(ring, "a")
    ring.publish(PolicyProblem(1.0, "bad"))
    fill(ring, "b", "c", "d")
    assert told(place.take()) == [("gap", 2), ("policy_problem", "bad"), ("log", "c"), ("log", "d")]
    fill(ring, "e")
    assert told(place.take()) == [("log", "e")]
    assert told(Place(ring, FIRST, "0").take())[0] == ("gap", 3)


def test_each_kind_of_notice_has_its_event() -> None:
    refused = Refused(1.0, "req-1", "in_flight_full", "no", 429, 3, 2, 2, "s", "parent", "pi", 5, 6)
    ended = StreamEnded(1.0, "req-1", "stop", "", "s", "parent", "pi", 1, 2, None, 0.5)
    names = [
        name_event(notice)
        for notice in (
            refused,
            ended,
            PolicyChanged(1.0, "api", (), "alice"),
            PolicyProblem(1.0, ""),
            ModelStateChanged(1.0, "ready", ""),
            log_line("x"),
        )
    ]
    assert names == ["refused", "stream_ended", "policy_changed", "policy_problem", "model_changed", "log"]


class Follower:
    """One client of the endpoint, through the application."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.data = b""

    async def until(self, claim: Callable[[list[Event]], object]) -> list[Event]:
        async with asyncio.timeout(5):
            while not claim(self.events):
                self.data += await self._connection.receive()
        return self.events

    async def rest(self) -> list[Event]:
        async with asyncio.timeout(5):
            await self._connection.as_response()
        return self.events

    @property
    def events(self) -> list[Event]:
        return read(self.data)

    def names(self) -> list[str]:
        return [event["event"] for event in self.events]


@contextlib.asynccontextmanager
async def follow(rig: Any, **headers: str) -> AsyncGenerator[Follower]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with rig.client.request("/homebase/events", headers=sent) as connection:
        await connection.send_complete()
        yield Follower(connection)
        await connection.disconnect()


def has(name: str) -> Callable[[list[Event]], bool]:
    return lambda events: any(event["event"] == name for event in events)


@pytest.mark.usefixtures("quick")
async def test_a_follower_sees_a_stream_begin_and_end_and_a_refusal(rig: Any, chat_body: Any) -> None:
    rig.set_policy(policy__max_in_flight=1)
    async with follow(rig) as follower:
        (first,) = await follower.until(has("snapshot"))
        assert first["data"]["streams"] == []
        task = asyncio.create_task(rig.post(chat_body("hello")))
        await rig.until(lambda: rig.engine.open)
        await rig.post(chat_body("two"))
        rig.engine.end(rig.engine.only, "stop")
        await task
        events = await follower.until(has("stream_ended"))
        rig.ring.publish(ModelStateChanged(1.0, "ready", ""))
        events = await follower.until(has("model_changed"))
    assert [name for name in follower.names() if name != "snapshot"] == ["refused", "stream_ended", "model_changed"]
    refused = next(event for event in events if event["event"] == "refused")
    assert (refused["data"]["kind"], refused["data"]["code"]) == ("refused", "in_flight_full")
    assert any(event["data"]["streams"] for event in events if event["event"] == "snapshot")
    numbers = [event["id"] for event in events]
    assert numbers == sorted(numbers)
    assert len({event["id"] for event in events if event["event"] != "snapshot"}) == 3
    async with follow(rig, last_event_id=str(refused["id"])) as again:
        await again.until(has("snapshot"))
    assert again.names() == ["stream_ended", "model_changed", "snapshot"]


@pytest.mark.usefixtures("quick")
async def test_while_nothing_happens_there_is_one_snapshot_and_then_signs_of_life(rig: Any) -> None:
    rig.set_policy(server__keep_alive_s=0.5)
    async with follow(rig) as follower:
        async with asyncio.timeout(5):
            while follower.data.count(b": keep-alive\n\n") < 2:
                follower.data += await follower._connection.receive()
    assert follower.names() == ["snapshot"]


@pytest.mark.usefixtures("quick")
async def test_it_ends_with_the_server_and_says_the_last_state_before(rig: Any) -> None:
    frames = SnapshotFrames(rig.build_snapshot, lambda: 0.0)
    over = False
    stream = tell(Place(rig.ring, FIRST), frames, lambda: over, 5)
    await anext(stream)
    rig.state, over = "stopped", True
    fill(rig.ring, "the last line")
    (line, snapshot) = read(b"".join([data async for data in stream]))
    assert line["data"]["message"] == "the last line"
    assert (snapshot["data"]["state"], snapshot["id"]) == ("stopped", line["id"])


@pytest.mark.usefixtures("quick")
async def test_who_is_slow_gets_the_newest_snapshot_only_and_all_notices(rig: Any) -> None:
    place = Place(rig.ring, FIRST)
    stream = tell(place, SnapshotFrames(rig.build_snapshot, asyncio.get_running_loop().time), lambda: False, 5)
    await anext(stream)
    for turn in range(20):
        rig.model = type(rig.model)(
            **{name: getattr(rig.model, name) for name in rig.model.__struct_fields__} | {"detail": f"{turn}"}
        )
        fill(rig.ring, f"line {turn}")
        await asyncio.sleep(0.003)
    events = read(await anext(stream))
    assert [event["event"] for event in events] == ["log"] * 20 + ["snapshot"]
    assert events[-1]["data"]["model"]["detail"] == "19"


@pytest.mark.usefixtures("quick")
async def test_when_it_changes_who_may_call_everyone_has_to_come_in_again(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_A", "k-alice")
    monkeypatch.setenv("KEY_B", "k-bob")
    rig.set_policy(server__keys=("alice = KEY_A", "bob = KEY_B"))
    for changes, ends in (
        ({"policy__max_in_flight": 7, "server__keep_alive_s": 9.0}, False),
        ({"server__read_only_keys": ("bob",)}, True),
        ({"server__keys": ("alice = KEY_A",), "server__read_only_keys": ()}, True),
    ):
        async with follow(rig, x_api_key="k-bob") as follower:
            await follower.until(has("snapshot"))
            rig.set_policy(**changes)
            if ends:
                await follower.rest()
            else:
                rig.ring.publish(log_line("still here"))
                await follower.until(has("log"))
    refused = await rig.client.get("/homebase/events", headers={"x-api-key": "k-bob"})
    assert refused.status_code == 401


async def test_head_has_an_end(rig: Any) -> None:
    async with asyncio.timeout(5):
        answer = await rig.client.head("/homebase/events")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_followers_take_no_slot_and_draining_does_not_end_them(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.set_policy(policy__max_in_flight=1)
    rig.engine.script = speak("x")
    async with follow(rig) as one, follow(rig) as other:
        await one.until(has("snapshot"))
        await other.until(has("snapshot"))
        assert (await rig.post(chat_body())).status_code == 200
        await rig.client.post("/homebase/drain")
        assert (await rig.post(chat_body())).status_code == 503
        events = await one.until(lambda events: has("refused")(events) and has("stream_ended")(events))
        refused = next(event["data"] for event in events if event["event"] == "refused")
        assert refused["code"] == "draining"
