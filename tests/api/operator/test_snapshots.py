"""What counts as a change, and how often it is looked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from server.api.operator.snapshots import EVERY_S, SnapshotFrames, leave_out_clocks
from server.snapshot import Snapshot


def later(snapshot: Snapshot, **changes: Any) -> Snapshot:
    moved = msgspec.structs.replace(snapshot, sequence=99, time_s=9.0, monotonic_s=9.0, uptime_s=9.0)
    return msgspec.structs.replace(moved, **changes)


def test_clocks_alone_are_no_change(rig: Any) -> None:
    snapshot = rig.build_snapshot()
    change = msgspec.structs.replace
    quiet = later(
        snapshot,
        rates=change(snapshot.rates, decode_history_tps=(0.0,) * 9),
        memory=change(snapshot.memory, resident_bytes=4096),
    )
    assert leave_out_clocks(quiet) == leave_out_clocks(snapshot)
    for changed in (
        later(snapshot, state="draining"),
        later(snapshot, admission=change(snapshot.admission, in_flight=1)),
        later(snapshot, memory=change(snapshot.memory, resident_bytes=2**30)),
        later(snapshot, rates=change(snapshot.rates, decode_tokens_total=1)),
    ):
        assert leave_out_clocks(changed) != leave_out_clocks(snapshot)


async def test_a_stream_in_flight_is_news_and_one_that_is_over_is_so_once(rig: Any, chat_body: Any) -> None:
    task = asyncio.create_task(rig.post(chat_body("hello")))
    await rig.until(lambda: rig.engine.open)
    seen = leave_out_clocks(rig.build_snapshot())
    await asyncio.sleep(0.002)
    assert leave_out_clocks(rig.build_snapshot()) != seen
    rig.engine.end(rig.engine.only, "stop")
    await task
    seen = leave_out_clocks(rig.build_snapshot())
    await asyncio.sleep(0.002)
    assert leave_out_clocks(rig.build_snapshot()) == seen


def test_however_many_ask_it_is_built_once_in_a_quarter_of_a_second(rig: Any) -> None:
    built: list[Snapshot] = []

    def build() -> Snapshot:
        built.append(rig.build_snapshot())
        return built[-1]

    now_s = 100.0
    frames = SnapshotFrames(build, lambda: now_s)
    first = frames.read()
    assert first == frames.read()
    assert len(built) == 1
    rig.state = "draining"
    assert frames.read() == first
    now_s += EVERY_S
    number, data = frames.read()
    assert number > first[0]
    assert json.loads(data)["state"] == "draining"
    assert len(built) == 2
    now_s += EVERY_S
    assert frames.read() == (number, data)
    rig.state = "stopped"
    assert json.loads(frames.read(at_once=True)[1])["state"] == "stopped"
