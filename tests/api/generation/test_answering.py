"""Who gets headers at once, and who when there is something to say."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

GROK = {"user-agent": "grok-shell/1.0.8 (linux; x86_64)"}
PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]


def build_body(path: str) -> dict[str, Any]:
    said = [{"role": "user", "content": "hi"}]
    asked = {"input": said} if path == "/v1/responses" else {"messages": said, "max_tokens": 100}
    return {"model": "nano", "stream": True, **asked}


async def start(rig: Any, headers: dict[str, str], path: str = PATHS[0]) -> asyncio.Task[Any]:
    """A stream that is asked for and admitted."""
    asked = asyncio.ensure_future(rig.post(build_body(path), headers, path))
    await rig.until(lambda: rig.engine.open)
    return asked


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_counts_from_its_headers_gets_them_with_the_first_token(rig: Any, path: str) -> None:
    asked = await start(rig, GROK, path)
    rig.engine.prefill(rig.engine.only, 2, 2)
    await rig.settle()
    assert not asked.done()
    request_id = rig.engine.only
    rig.engine.say(request_id, "Hello")
    rig.engine.end(request_id, "stop")
    answer = await asked
    assert answer.status_code == 200
    data = (await answer.get_data()).decode()
    assert "Hello" in data
    held = [line for line in data.splitlines() if line]

    rig.engine.script = lambda engine, request: (
        engine.prefill(request.id, 2, 2),
        engine.say(request.id, "Hello"),
        engine.end(request.id, "stop"),
    )
    plain = (await (await rig.post(build_body(path), {}, path)).get_data()).decode()
    assert [line for line in held if line.startswith("event:")] == [
        line for line in plain.splitlines() if line.startswith("event:")
    ]


@pytest.mark.parametrize("agent", ["", "OpenAI/Python 2.1", "not-grok-shell/1.0", "grok-shellfish/1.0"])
async def test_all_others_get_headers_before_any_token(rig: Any, agent: str) -> None:
    connection = rig.client.request(PATHS[0], method="POST", headers={"user-agent": agent})
    async with connection:
        await connection.send(json.dumps(build_body(PATHS[0])).encode())
        await connection.send_complete()
        first = await asyncio.wait_for(connection.receive(), 2)
        assert b'"role":"assistant"' in first
        assert connection.status_code == 200
        rig.engine.end(rig.engine.only, "stop")


async def test_the_list_is_the_policys(rig: Any) -> None:
    rig.set_policy(server__hold_headers_for=("other-agent",))
    held = await start(rig, {"user-agent": "other-agent (x)"})
    await rig.settle()
    assert not held.done()
    rig.engine.end(rig.engine.only, "stop")
    assert (await held).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("end", "status", "code", "outcome"),
    [
        (lambda engine: engine.end(engine.only, "failed", "Broke."), 500, "sequence_failed", "failed"),
        (lambda engine: engine.die("Gone."), 500, "engine_dead", "failed"),
        (lambda engine: engine.end(engine.only, "cancelled"), 400, "stream_stopped", "cancelled"),
    ],
)
async def test_a_failure_before_the_first_token_is_a_plain_error(
    rig: Any, path: str, end: Any, status: int, code: str, outcome: str
) -> None:
    asked = await start(rig, GROK, path)
    rig.engine.prefill(rig.engine.only, 1, 1)
    end(rig.engine)
    answer = await asked
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert code in (await answer.get_data()).decode()
    await rig.settle()
    assert [ended.outcome for ended in rig.ends()] == [outcome]


async def test_a_failure_after_it_is_an_event_of_the_stream(rig: Any) -> None:
    asked = await start(rig, GROK)
    rig.engine.say(rig.engine.only, "x")
    await rig.settle()
    rig.engine.die("Gone.")
    answer = await asked
    assert answer.status_code == 200
    assert b"engine_dead" in await answer.get_data()


async def test_who_leaves_while_headers_are_held_frees_the_slot(rig: Any, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(build_body(PATHS[0])).encode()
    head = f"POST {PATHS[0]} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: {GROK['user-agent']}\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await rig.until(lambda: rig.engine.open)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)
    writer.close()
    await rig.until(lambda: rig.admission.in_flight == 0)
    assert [ended.outcome for ended in rig.ends()] == ["cancelled"]
