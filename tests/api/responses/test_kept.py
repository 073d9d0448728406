"""What can be done with a response by its id, through the whole application."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from server.api.responses import kept as module


async def read(answer: Any) -> dict[str, Any]:
    return json.loads(await answer.get_data())


async def call(rig: Any, method: str, path: str, key: str = "", body: bytes = b"") -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await getattr(rig.client, method)(f"/v1/responses/{path}", headers=headers, data=body)


async def begin(rig: Any, ask: Any, **fields: Any) -> tuple[str, asyncio.Task[Any]]:
    """A response that is in flight, and the task that reads it."""
    task = asyncio.create_task(ask({"input": "hi", **fields}))
    await rig.until(lambda: rig.engine.open)
    rig.engine.say(rig.engine.only, "Half")
    await rig.settle()
    return f"resp_{rig.engine.only.removeprefix('req-')}", task


async def test_a_response_is_given_again_as_it_was(rig: Any, ask: Any, speak: Any, read_events: Any) -> None:
    rig.engine.script = speak("one")
    whole = await (await ask({"input": "a"})).get_data()
    streamed = read_events(await (await ask({"input": "a", "stream": True})).get_data())[-1]["response"]
    again = await call(rig, "get", json.loads(whole)["id"])
    assert again.headers["content-type"] == "application/json"
    assert await again.get_data() == whole
    assert await read(await call(rig, "get", streamed["id"])) == streamed
    assert rig.admission.admitted_total == 2


async def test_it_is_not_streamed_again(rig: Any, ask: Any, speak: Any) -> None:
    rig.engine.script = speak("one")
    response_id = (await read(await ask({"input": "a"})))["id"]
    answer = await call(rig, "get", f"{response_id}?stream=true")
    assert (answer.status_code, (await read(answer))["error"]["param"]) == (400, "stream")
    assert (
        await call(rig, "get", f"{response_id}?stream=false&include=reasoning.encrypted_content")
    ).status_code == 200


async def test_a_deleted_one_is_gone(rig: Any, ask: Any, speak: Any) -> None:
    rig.engine.script = speak("one")
    response_id = (await read(await ask({"input": "a"})))["id"]
    answer = await call(rig, "delete", response_id)
    assert await read(answer) == {"id": response_id, "object": "response", "deleted": True}
    for method, path in (("get", ""), ("delete", ""), ("get", "/input_items"), ("post", "/cancel")):
        answer = await call(rig, method, response_id + path)
        assert (answer.status_code, (await read(answer))["error"]["code"]) == (404, "response_not_found")


async def test_one_key_never_reaches_anothers(rig: Any, ask: Any, speak: Any) -> None:
    rig.engine.script = speak("one")
    response_id = (await read(await ask({"input": "a"}, authorization="Bearer k1")))["id"]
    for method, path in (("get", ""), ("get", "/input_items"), ("post", "/cancel"), ("delete", "")):
        for key in ("", "k2"):
            assert (await call(rig, method, response_id + path, key)).status_code == 404
    assert (await call(rig, "get", response_id, "k1")).status_code == 200


async def test_one_in_flight_can_be_looked_at(rig: Any, ask: Any, read_response: Any) -> None:
    response_id, task = await begin(rig, ask)
    now = read_response(await (await call(rig, "get", response_id)).get_data())
    assert (now["status"], now["output"][0]["content"][0]["text"]) == ("in_progress", "Half")
    rig.engine.end(rig.engine.only, "stop")
    whole = await read(await task)
    assert await read(await call(rig, "get", response_id)) == whole


async def test_one_that_will_not_be_kept_cannot(rig: Any, ask: Any) -> None:
    response_id, task = await begin(rig, ask, store=False)
    assert (await call(rig, "get", response_id)).status_code == 404
    rig.engine.end(rig.engine.only, "stop")
    await task


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_stream_in_flight_is_cancelled(
    rig: Any, ask: Any, read_events: Any, read_response: Any, is_kept: bool
) -> None:
    response_id, task = await begin(rig, ask, stream=True, store=is_kept)
    request_id = rig.engine.only
    answer = await call(rig, "post", f"{response_id}/cancel", body=b"{}")
    cancelled = read_response(await answer.get_data())
    assert answer.status_code == 200
    assert (cancelled["id"], cancelled["status"]) == (response_id, "cancelled")
    assert cancelled["output"][0]["content"][0]["text"] == "Half"
    assert rig.engine.cancelled == [request_id]
    last = read_events(await (await task).get_data())[-1]
    assert (last["type"], last["response"]) == ("response.failed", cancelled)
    assert rig.admission.in_flight == 0
    assert [(end.outcome, end.detail) for end in rig.ends()] == [
        ("cancelled", "cancelled by its client in decode after 4 tokens")
    ]
    again = await call(rig, "post", f"{response_id}/cancel")
    assert again.status_code == (200 if is_kept else 404)
    if is_kept:
        assert await read(again) == await read(await call(rig, "get", response_id)) == cancelled


async def test_one_that_is_not_streamed_is_cancelled(rig: Any, ask: Any, read_response: Any) -> None:
    response_id, task = await begin(rig, ask)
    cancelled = read_response(await (await call(rig, "post", f"{response_id}/cancel")).get_data())
    assert (cancelled["status"], cancelled["error"]["type"]) == ("cancelled", "stream_stopped")
    answer = await task
    assert (answer.status_code, (await read(answer))["error"]["code"]) == (400, "stream_stopped")
    assert await read(await call(rig, "get", response_id)) == cancelled


async def test_a_cancel_that_comes_too_late_tells_how_it_ended(rig: Any, ask: Any, speak: Any) -> None:
    response_id, task = await begin(rig, ask)
    rig.engine.end(rig.engine.only, "stop")
    answer = await call(rig, "post", f"{response_id}/cancel")
    await task
    assert answer.status_code in (200, 400)
    answer = await call(rig, "post", f"{response_id}/cancel")
    assert answer.status_code == 400
    assert "is over (completed)" in (await read(answer))["error"]["message"]


async def test_a_cancel_does_not_wait_for_an_engine_that_does_not_end(
    rig: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANCEL_S", 0.05)
    monkeypatch.setattr(rig.engine, "cancel", lambda _: None)
    response_id, task = await begin(rig, ask)
    now = await read(await call(rig, "post", f"{response_id}/cancel"))
    assert now["status"] == "in_progress"
    rig.engine.end(rig.engine.only, "cancelled")
    await task


async def test_one_in_flight_is_not_deleted(rig: Any, ask: Any) -> None:
    response_id, task = await begin(rig, ask)
    answer = await call(rig, "delete", response_id)
    assert (answer.status_code, "cancel it first" in (await read(answer))["error"]["message"]) == (400, True)
    rig.engine.end(rig.engine.only, "stop")
    await task


async def test_its_input_is_listed(rig: Any, ask: Any, speak: Any) -> None:
    rig.engine.script = speak("one")
    response_id = (await read(await ask({"input": "a"})))["id"]
    page = await read(await call(rig, "get", f"{response_id}/input_items"))
    item_id = f"msg_{response_id.removeprefix('resp_')}_in0"
    assert page == {
        "object": "list",
        "data": [
            {
                "id": item_id,
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{"type": "input_text", "text": "a"}],
            }
        ],
        "first_id": item_id,
        "last_id": item_id,
        "has_more": False,
    }


async def test_a_wrong_method_is_told_the_right_ones(rig: Any) -> None:
    answer = await call(rig, "post", "resp_1")
    assert answer.status_code == 405
    assert {"GET", "DELETE"} <= set(answer.headers["allow"].split(", "))
