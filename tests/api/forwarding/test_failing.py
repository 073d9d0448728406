"""Upstreams that stall, die and break off, clients that leave, operators that stop: rows end, and no slot stays."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from server.admission.cascade import RETURN_S
from server.admission.decide import Asked
from server.admission.slots import NOBODY
from server.errors import Refusal, ServerEnding
from server.upstreams.headers import HOPS

BODY = {"model": "far", "stream": True, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"


async def error_of(answer: Any) -> dict[str, Any]:
    return json.loads(await answer.get_data())["error"]


async def half(visit: Any) -> None:
    """Two events and a half, and the end of the connection."""
    await visit.head()
    await visit.event({"choices": [{"delta": {"content": "a"}}]})
    await visit.event({"choices": [{"delta": {"content": "b"}}]})
    await visit.send(b'data: {"choices": [{"del')
    visit.writer.close()


async def stall(visit: Any) -> None:
    await visit.head()
    await visit.event({"choices": [{"delta": {"content": "a"}}]})
    await visit.closed.wait()


async def silent(visit: Any) -> None:
    await visit.closed.wait()


async def rest(rig: Any) -> None:
    """Nothing of any request is left."""
    await rig.until(lambda: rig.admission.in_flight == 0 and rig.build_snapshot().upstreams[0].in_flight == 0)
    assert all(stream.outcome is not None for stream in rig.streams())


@pytest.mark.parametrize("governed", [False, True])
async def test_nobody_at_the_address_is_told_at_once(rig: Any, use: Any, governed: bool) -> None:
    use({"name": "gone", "base_url": "http://127.0.0.1:9/v1", "models": ["far"], "governed": governed})
    answer = await rig.post(BODY)
    assert (answer.status_code, (await error_of(answer))["code"]) == (502, "upstream_failed")
    assert rig.ends()[0].outcome == "failed"
    await rest(rig)


@pytest.mark.parametrize(
    ("agent", "status"),
    [
        ("codex_cli_rs/0.171", 400),
        ("opencode/1.18", 400),
        ("mine/1 ai-sdk/openai-compatible/2.0", 400),
        ("QwenCode/0.15", 400),
        ("my-agent/1", 400),
        ("OpenAI/Python 3", 502),
        ("aider", 502),
        ("", 502),
    ],
)
async def test_clients_that_retry_faults_are_told_so_that_they_do_not(
    rig: Any, use: Any, agent: str, status: int
) -> None:
    use({"name": "gone", "base_url": "http://127.0.0.1:9/v1", "models": ["far"]}, refuse_with_400=["my-agent"])
    for path in ("/v1/chat/completions", MESSAGES):
        answer = await rig.post(BODY, {"user-agent": agent}, path=path)
        assert answer.status_code == status
        assert status != 400 or answer.headers["x-should-retry"] == "false"
        kind = json.loads(await answer.get_data())["error"]["type"]
        assert (
            kind == "upstream_error"
            if path != MESSAGES
            else ("invalid_request_error" if status == 400 else "api_error")
        )


async def test_after_three_failures_it_is_left_alone_and_then_tried_once(
    rig: Any, upstream: Any, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one()
    now_s = 1000.0
    health = rig.upstreams._find_health("far-away")
    monkeypatch.setattr(health, "_clock", lambda: now_s)

    async def fault(visit: Any) -> None:
        await visit.answer(503, {"error": {"message": "theirs"}})

    script, upstream.script = upstream.script, fault
    for _ in range(3):
        assert (await rig.post(BODY)).status_code == 503
    answer = await rig.post(BODY)
    assert answer.status_code == 502
    assert answer.headers["x-should-retry"] == "false"
    error = await error_of(answer)
    assert error["code"] == "upstream_unavailable"
    assert "failed 3 times in a row" in error["message"]
    assert len(upstream.visits) == 3
    assert rig.build_snapshot().upstreams[0].state == "down"
    now_s += 11
    upstream.script = script
    assert (await rig.post(BODY)).status_code == 200
    assert rig.build_snapshot().upstreams[0].state == "up"
    assert (await rig.post(BODY)).status_code == 200


@pytest.mark.parametrize(
    ("path", "begins"),
    [
        ("/v1/chat/completions", 'data: {"error":{"message":"The upstream far-away broke off within its answer."'),
        ("/v1/completions", 'data: {"error":{'),
        (MESSAGES, 'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        (RESPONSES, 'event: response.failed\ndata: {"type":"response.failed","response":{"id":"resp_'),
    ],
)
@pytest.mark.parametrize("governed", [False, True])
async def test_an_upstream_that_dies_within_its_stream_ends_it_with_the_dialects_error(
    rig: Any, upstream: Any, one: Any, path: str, begins: str, governed: bool
) -> None:
    one(governed=governed)
    upstream.script = half
    answer = await rig.post(BODY | {"prompt": "x", "input": "x"}, path=path)
    assert answer.status_code == 200
    events = (await answer.get_data()).decode().split("\n\n")
    assert len(events) == 4, "two whole events, the error, and nothing after it"
    assert events[2].startswith(begins)
    assert rig.ends()[0].outcome == "failed"
    assert "broke off" in rig.ends()[0].detail
    await rest(rig)


async def test_an_end_without_the_mark_of_one_is_a_failure(rig: Any, upstream: Any, one: Any) -> None:
    one()

    async def cut(visit: Any) -> None:
        await visit.head()
        await visit.event({"choices": [{"delta": {"content": "a"}}]})
        await visit.end()

    upstream.script = cut
    assert b"upstream_failed" in await (await rig.post(BODY)).get_data()
    assert rig.ends()[0].outcome == "failed"


async def test_a_connection_that_breaks_after_the_whole_answer_costs_nothing(rig: Any, upstream: Any, one: Any) -> None:
    one()

    async def rude(visit: Any) -> None:
        await visit.head()
        await visit.event({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]})
        await visit.send(b"data: [DONE]\n\n")
        visit.writer.close()

    upstream.script = rude
    data = await (await rig.post(BODY)).get_data()
    assert data.endswith(b"data: [DONE]\n\n")
    assert rig.ends()[0].outcome == "stop"


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_upstream_that_dies_before_a_byte_is_a_502(rig: Any, upstream: Any, one: Any, streaming: bool) -> None:
    one(governed=True)

    async def die(visit: Any) -> None:
        visit.writer.close()

    upstream.script = die
    answer = await rig.post(BODY | {"stream": streaming})
    assert (answer.status_code, (await error_of(answer))["code"]) == (502, "upstream_failed")
    await rest(rig)


async def test_an_answer_in_one_piece_that_breaks_off_is_a_502(rig: Any, upstream: Any, one: Any) -> None:
    one(governed=True)

    async def die(visit: Any) -> None:
        await visit.head(200, "application/json")
        await visit.send(b'{"choices": [')
        visit.writer.close()

    upstream.script = die
    answer = await rig.post(BODY | {"stream": False})
    assert (answer.status_code, (await error_of(answer))["code"]) == (502, "upstream_failed")
    await rest(rig)


@pytest.mark.parametrize("governed", [False, True])
async def test_silence_has_an_end(rig: Any, upstream: Any, one: Any, governed: bool) -> None:
    one(governed=governed, silence_timeout_s=0.1)
    upstream.script = silent
    answer = await rig.post(BODY)
    assert (answer.status_code, (await error_of(answer))["code"]) == (504, "upstream_silent")
    upstream.script = stall
    data = await (await rig.post(BODY)).get_data()
    assert b'"code":"upstream_silent"' in data
    assert [end.outcome for end in rig.ends()] == ["failed", "failed"]
    await rest(rig)


@pytest.mark.parametrize("script", [silent, stall])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_hangs_up_ends_the_upstreams_work_at_once(
    rig: Any, upstream: Any, one: Any, port: int, script: Any, streaming: bool
) -> None:
    one(governed=True)
    upstream.script = script
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        asking = asyncio.create_task(client.post(url, json=BODY | {"stream": streaming}))
        await rig.until(lambda: upstream.visits)
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.wait((asking,))
    await asyncio.wait_for(upstream.only.closed.wait(), 2)
    await rest(rig)
    (end,) = rig.ends()
    assert end.outcome == "cancelled"
    assert end.detail.startswith("client closed the connection")
    assert rig.build_snapshot().upstreams[0].failures_total == 0


@pytest.mark.parametrize("script", [silent, stall])
async def test_an_operator_stops_it_as_any_stream(rig: Any, upstream: Any, one: Any, script: Any) -> None:
    one(governed=True)
    upstream.script = script
    task = asyncio.create_task(rig.post(BODY))
    await rig.until(lambda: upstream.visits)
    await asyncio.sleep(0.05)
    (row,) = rig.streams()
    cancelled = await rig.client.post(f"/v1/requests/{row.id}/cancel")
    assert cancelled.status_code == 200
    data = await (await task).get_data()
    assert b'"code":"stream_stopped"' in data
    await asyncio.wait_for(upstream.only.closed.wait(), 2)
    await rest(rig)
    assert rig.ends()[0].outcome == "cancelled"
    assert (await rig.client.post(f"/v1/requests/{row.id}/cancel")).status_code == 404


async def test_the_end_of_the_server_ends_it_and_takes_no_more(rig: Any, upstream: Any, one: Any) -> None:
    one()
    upstream.script = stall
    task = asyncio.create_task(rig.post(BODY))
    await rig.until(lambda: rig.streams() and rig.streams()[0].completion_tokens)
    rig.upstreams.flights.close(ServerEnding())
    assert b"shutting down" in await (await task).get_data()
    assert rig.telemetry.open_streams == 0
    assert (await rig.post(BODY)).status_code == 503
    await rest(rig)


async def test_a_governed_server_has_the_same_slots_as_our_own_model(
    rig: Any, upstream: Any, one: Any, chat_body: Any
) -> None:
    one(governed=True)
    rig.policy = type(rig.policy)(upstreams=rig.policy.upstreams, policy=type(rig.policy.policy)(max_in_flight=1))
    upstream.script = stall
    task = asyncio.create_task(rig.post(BODY))
    await rig.until(lambda: rig.admission.in_flight == 1)
    for body in (BODY, chat_body()):
        refused = await rig.post(body)
        assert (refused.status_code, (await error_of(refused))["code"]) == (429, "in_flight_full")
    assert [each.code for each in rig.refusals()] == ["in_flight_full"] * 2
    await rig.until(rig.streams)
    rig.stop_stream(rig.streams()[0].id)
    await (await task).get_data()
    assert rig.admission.in_flight == 0


async def test_a_slot_is_free_before_the_end_of_the_answer_is_told(rig: Any, upstream: Any, one: Any) -> None:
    one(governed=True)
    go = asyncio.Event()

    async def linger(visit: Any) -> None:
        await visit.head()
        await visit.event({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]})
        await go.wait()
        await visit.send(b"data: [DONE]\n\n")
        await visit.end()

    upstream.script = linger
    task = asyncio.create_task(rig.post(BODY))
    await rig.until(lambda: rig.streams() and rig.streams()[0].completion_tokens)
    assert rig.admission.in_flight == 0
    go.set()
    await (await task).get_data()
    assert rig.ends()[0].outcome == "stop"


async def test_what_is_refused_here_goes_where_it_may_overflow(
    rig: Any, upstream: Any, use: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(
        {"name": "spill", "base_url": upstream.url, "models": ["big-*", "big-one"]},
        limit_behavior="overflow",
        overflow_to="spill",
    )
    is_overflow = True

    async def refuse(*_: Any) -> None:
        raise Refusal("full", code="in_flight_full", limit=1, used=1, retry_after_s=3, overflow=is_overflow)

    monkeypatch.setattr(rig.admission, "enter", refuse)
    answer = await rig.post(chat_body(stream=True))
    assert answer.status_code == 200
    assert json.loads(upstream.only.body) == chat_body(stream=True) | {"model": "big-one"}
    assert rig.refusals() == []
    assert rig.streams()[0].upstream == "spill"
    is_overflow = False
    assert (await rig.post(chat_body())).status_code == 429
    assert len(rig.refusals()) == 1


async def test_a_reader_that_is_slow_slows_the_upstream(rig: Any, upstream: Any, one: Any, port: int) -> None:
    one()
    sent = 0
    piece = b"data: " + json.dumps({"choices": [{"delta": {"content": "x" * 60_000}}]}).encode() + b"\n\n"

    async def flood(visit: Any) -> None:
        nonlocal sent
        await visit.head()
        while not visit.closed.is_set():
            await visit.send(piece)
            sent += len(piece)

    upstream.script = flood
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    data = json.dumps(BODY).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await reader.readexactly(100)
    before = -1
    while before != sent:  # until nothing moves
        before = sent
        await asyncio.sleep(0.3)
    assert sent < 32 * 1024 * 1024, "what the sockets hold, and no more"
    writer.transport.abort()
    await asyncio.wait_for(upstream.only.closed.wait(), 3)
    await rest(rig)


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_parent_that_is_gone_ends_its_children_at_an_upstream(
    rig: Any, upstream: Any, one: Any, comes_back: bool
) -> None:
    one()
    upstream.script = stall
    parent = {"x-homebase-session": "p"}
    child = {"x-homebase-session": "c", "x-homebase-parent-session": "p"}
    asking = [asyncio.create_task(rig.post(BODY, headers)) for headers in (parent, child)]
    await rig.until(lambda: len(rig.streams()) == 2 and all(row.completion_tokens for row in rig.streams()))
    rig.stop_stream(next(row.id for row in rig.streams() if row.session == "p"))
    await (await asking[0]).get_data()
    if comes_back:
        asking.append(asyncio.create_task(rig.post(BODY, parent)))
        await rig.until(lambda: len(upstream.visits) == 3)
    await asyncio.sleep(RETURN_S / 20 * 3)
    ended = [row.outcome_detail for row in rig.streams() if row.session == "c" and row.outcome]
    assert (ended == []) == comes_back
    for row in rig.streams():
        rig.stop_stream(row.id)
    for task in asking[1:]:
        await (await task).get_data()
    (row,) = (row for row in rig.streams() if row.session == "c")
    assert row.outcome_detail.startswith("cancelled with its parent") != comes_back
    await rest(rig)


async def test_an_upstream_that_is_this_server_is_told_and_not_asked(rig: Any, use: Any, port: int) -> None:
    use({"name": "mirror", "base_url": f"http://127.0.0.1:{port}/v1", "models": ["far"]})
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    assert "leads back to this server" in answer.json()["error"]["message"]
    assert len(rig.ends()) == 1, "it asked itself once"
    await rest(rig)


async def test_what_overflowed_to_this_server_is_refused_where_it_is_full(
    rig: Any, upstream: Any, use: Any, chat_body: Any
) -> None:
    table = {"name": "twin", "base_url": upstream.url, "models": ["far"]}
    use(table, limit_behavior="overflow", overflow_to="twin", max_in_flight=1)
    permit = rig.admission.admit(Asked(NOBODY, 1, 1, 1), rig.policy.policy)
    answer = await rig.post(chat_body(), {HOPS: f"another, {rig.upstreams.hop}"})
    assert (answer.status_code, (await error_of(answer))["code"]) == (429, "in_flight_full")
    assert upstream.visits == []
    permit.release()
