"""The way in: refused by the limits of agents, waiting for a place, leaving with one's parent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from server.errors import EngineStalled
from server.policy import ClientPolicy

CHAT = "/v1/chat/completions"
PARENT = {"x-homebase-session": "p"}
CHILD = {"x-homebase-session": "c", "x-homebase-parent-session": "p"}

LARGE = {"context_limit_tokens": 10**6, "effective_context_limit_tokens": 10**6}


async def start(rig: Any, chat_body: Any, headers: dict[str, str] | None = None, **fields: Any) -> asyncio.Task[Any]:
    """A request that the engine has."""
    before = set(rig.engine.open)
    task = asyncio.create_task(rig.post(chat_body("hello", **fields), headers))
    await rig.until(lambda: set(rig.engine.open) - before)
    return task


async def wait_in_line(rig: Any, chat_body: Any, headers: dict[str, str] | None = None) -> asyncio.Task[Any]:
    """A request that stands in line."""
    before = rig.admission.waiting
    task = asyncio.create_task(rig.post(chat_body("hello"), headers))
    await rig.until(lambda: rig.admission.waiting > before)
    return task


async def read_error(answer: Any) -> dict[str, Any]:
    return json.loads(await answer.get_data())["error"]


def finish(rig: Any, text: str = "hi") -> None:
    request_id = next(iter(rig.engine.open))
    rig.engine.say(request_id, text)
    rig.engine.end(request_id, "stop")


def list_waiting(rig: Any) -> list[Any]:
    return [stream for stream in rig.build_snapshot().streams if stream.queue_position is not None]


def queue(rig: Any, **changes: Any) -> None:
    rig.set_policy(policy__max_in_flight=1, policy__limit_behavior="queue", **changes)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_request_over_a_limit_waits_and_is_then_answered_as_any_other(
    rig: Any, chat_body: Any, streaming: bool
) -> None:
    queue(rig)
    first = await start(rig, chat_body)
    second = asyncio.create_task(rig.post(chat_body("hello", stream=streaming)))
    await rig.until(lambda: list_waiting(rig))
    (row,) = list_waiting(rig)
    assert (row.phase, row.queue_position, row.prompt_tokens) == ("waiting", 1, 5)
    assert row.expected_wait_s is not None
    assert (rig.admission.in_flight, len(rig.engine.open), second.done()) == (1, 1, False)
    finish(rig)
    assert (await first).status_code == 200
    await rig.until(lambda: rig.engine.open)
    assert list_waiting(rig) == []
    finish(rig, "waited")
    answer = await second
    assert answer.status_code == 200
    assert b"waited" in await answer.get_data()
    assert rig.refusals() == []
    assert [end.outcome for end in rig.ends()] == ["stop", "stop"]
    assert rig.admission.in_flight == 0


async def test_one_that_waited_in_vain_is_refused_with_a_status_of_its_own(rig: Any, chat_body: Any) -> None:
    queue(rig, policy__queue_wait_s=0.05)
    first = await start(rig, chat_body)
    answer = await rig.post(chat_body("hello", stream=True))
    error = await read_error(answer)
    assert (answer.status_code, error["code"]) == (429, "in_flight_full")
    assert "It waited" in error["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    (refused,) = rig.refusals()
    assert refused.request_id == answer.headers["x-request-id"]
    assert (refused.limit_key, refused.prompt_tokens) == ("policy.max_in_flight", 5)
    assert list_waiting(rig) == []
    finish(rig)
    await first


async def test_a_wait_is_ended_by_its_id(rig: Any, chat_body: Any) -> None:
    queue(rig)
    first = await start(rig, chat_body)
    waiting = await wait_in_line(rig, chat_body)
    (row,) = list_waiting(rig)
    answer = await rig.client.post(f"/v1/requests/{row.id}/cancel")
    assert answer.status_code == 200
    error = await read_error(await waiting)
    assert error["code"] == "stream_stopped"
    (end,) = rig.ends()
    assert (end.outcome, end.detail) == ("cancelled", "stopped at the server while it waited for a place")
    assert rig.build_snapshot().admission.finished_by_outcome == {}, "it was never in flight"
    finish(rig)
    await first


async def test_a_client_that_hangs_up_leaves_the_line(rig: Any, chat_body: Any, port: int) -> None:
    queue(rig)
    first = await start(rig, chat_body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(chat_body("hello")).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(f"{head}\r\n\r\n".encode() + data)
    await rig.until(lambda: list_waiting(rig))
    writer.close()
    await rig.until(lambda: not rig.admission.waiting)
    (end,) = rig.ends()
    assert end.detail == "client closed the connection while it waited for a place"
    assert await reader.read() == b""
    finish(rig)
    await first


async def test_a_side_request_waits_though_others_are_refused(rig: Any, chat_body: Any) -> None:
    rig.set_policy(policy__max_in_flight=1)
    first = await start(rig, chat_body)
    side = {"thread-id": "t", "x-openai-subagent": "compact"}
    waiting = await wait_in_line(rig, chat_body, side)
    assert (await rig.post(chat_body("hello"))).status_code == 429
    finish(rig)
    await first
    await rig.until(lambda: rig.engine.open)
    finish(rig)
    assert (await waiting).status_code == 200


async def test_who_waits_is_refused_when_the_server_takes_nothing_new(rig: Any, chat_body: Any) -> None:
    queue(rig)
    first = await start(rig, chat_body)
    waiting = await wait_in_line(rig, chat_body)
    rig.admission.drain()
    assert ((await waiting).status_code, rig.refusals()[0].code) == (503, "draining")
    finish(rig)
    assert (await first).status_code == 200


async def test_nobody_stands_in_line_for_an_engine_that_is_stalled(rig: Any, chat_body: Any) -> None:
    queue(rig)
    first = await start(rig, chat_body)
    waiting = await wait_in_line(rig, chat_body)
    rig.admission.fail_line(EngineStalled(60))
    assert (await read_error(await waiting))["code"] == "engine_stalled"
    assert (rig.ends()[0].outcome, rig.admission.waiting) == ("failed", 0)
    finish(rig)
    assert (await first).status_code == 200


async def test_a_second_child_is_refused_and_its_parent_is_not(rig: Any, chat_body: Any) -> None:
    rig.set_policy(policy__max_in_flight=3)
    running = [await start(rig, chat_body, PARENT), await start(rig, chat_body, CHILD)]
    answer = await rig.post(chat_body("hello"), {**CHILD, "x-homebase-session": "c2"})
    error = await read_error(answer)
    assert (answer.status_code, error["code"]) == (429, "child_lane_full")
    assert "1 of 1 children of this parent" in error["message"]
    running.append(await start(rig, chat_body, PARENT))
    for _ in running:
        finish(rig)
    assert [answer.status_code for answer in await asyncio.gather(*running)] == [200] * 3


async def test_what_is_refused_for_good_is_told_without_a_time_to_come_back(rig: Any, chat_body: Any) -> None:
    rig.set_policy(policy__subagents__max_depth=0)
    answer = await rig.post(chat_body("hello"), CHILD)
    assert (answer.status_code, (await read_error(answer))["code"]) == (400, "depth_exceeded")
    assert "retry-after" not in answer.headers
    assert answer.headers["x-should-retry"] == "false"


async def test_a_large_child_is_refused_before_its_prompt_is_read(rig: Any, chat_body: Any) -> None:
    rig.set_policy(policy__max_in_flight=3)
    running = [await start(rig, chat_body, PARENT), await start(rig, chat_body, CHILD)]
    rig.model = msgspec.structs.replace(rig.model, **LARGE)
    answer = await rig.post(chat_body("x" * 70_000), {**CHILD, "x-homebase-session": "c2"})
    assert (await read_error(answer))["code"] == "child_lane_full"
    assert rig.refusals()[0].prompt_tokens is None
    for _ in running:
        finish(rig)
    await asyncio.gather(*running)


async def test_the_budget_of_contexts_shortens_an_output_that_is_left_open(rig: Any, chat_body: Any) -> None:
    rig.model = msgspec.structs.replace(rig.model, **LARGE)
    rig.set_policy(policy__max_in_flight=2, policy__context_budget_tokens=20_000)
    first = await start(rig, chat_body)
    assert rig.engine.requests[rig.engine.only].max_tokens == 10_000 - 5
    answer = await rig.post(chat_body("hello", max_tokens=10_000))
    assert (answer.status_code, (await read_error(answer))["code"]) == (429, "context_budget_full")
    assert rig.refusals()[0].used == 10_000
    finish(rig)
    await first


async def test_a_clients_own_context_is_shorter(rig: Any, chat_body: Any) -> None:
    rig.policy = with_client(rig.policy, max_context_tokens=6)
    answer = await rig.post(chat_body("hello, you"), {"user-agent": "goose/1"})
    error = await read_error(answer)
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "policy.clients, max_context_tokens" in error["message"]
    other = await start(rig, chat_body, {"user-agent": "codex/1"})
    finish(rig)
    assert (await other).status_code == 200


def with_client(policy: Any, **own: Any) -> Any:
    limits = msgspec.structs.replace(policy.policy, clients={"goose": ClientPolicy(**own)})
    return msgspec.structs.replace(policy, policy=limits)


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_child_is_cancelled_with_a_parent_that_hung_up(
    rig: Any, chat_body: Any, port: int, is_on: bool
) -> None:
    rig.set_policy(policy__max_in_flight=3, policy__subagents__cancel_on_turn_cancel=is_on)
    child = await start(rig, chat_body, CHILD)
    child_id = rig.engine.only
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(chat_body("hello")).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nx-homebase-session: p\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await rig.until(lambda: len(rig.engine.open) == 2)
    writer.close()
    await rig.until(lambda: rig.ends())
    assert child_id in rig.engine.open, "the parent may come back"
    await asyncio.sleep(0.2)
    assert (child_id not in rig.engine.open) == is_on
    if is_on:
        error = await read_error(await child)
        assert error["code"] == "stream_stopped"
        assert "cancelled with its parent" in error["message"]
        assert rig.ends()[-1].detail.startswith("cancelled with its parent")
    else:
        finish(rig)
        assert (await child).status_code == 200
    assert await reader.read() == b""
