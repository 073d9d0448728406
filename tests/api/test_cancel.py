"""A request that is ended by its id, from another connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

CHAT = "/v1/chat/completions"


async def cancel(rig: Any, request_id: str, **headers: str) -> tuple[int, Any]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await rig.client.post(f"/v1/requests/{request_id}/cancel", headers=sent)
    body = json.loads(await answer.get_data())
    return answer.status_code, body.get("error", body)


async def start(rig: Any, chat_body: Any, headers: dict[str, str] | None = None, **fields: Any) -> asyncio.Task[Any]:
    before = set(rig.engine.open)
    task = asyncio.create_task(rig.post(chat_body("hello", **fields), headers))
    await rig.until(lambda: set(rig.engine.open) - before)
    return task


@pytest.mark.parametrize("prefix", ["req-", "chatcmpl-", ""])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_request_is_ended_by_any_form_of_its_id_and_told_where_it_was(
    rig: Any, chat_body: Any, prefix: str, streaming: bool
) -> None:
    task = await start(rig, chat_body, stream=streaming)
    request_id = rig.engine.only
    rig.engine.prefill(request_id, 5, 5)
    rig.engine.say(request_id, "abc")
    status, told = await cancel(rig, prefix + request_id.removeprefix("req-"))
    assert (status, told) == (
        200,
        {
            "id": request_id,
            "object": "request.cancelled",
            "phase": "decode",
            "prompt_tokens": 5,
            "completion_tokens": 3,
        },
    )
    answer = await task
    body = (await answer.get_data()).decode()
    assert "stream_stopped" in body
    assert "[DONE]" not in body
    assert answer.headers.get("x-should-retry") == (None if streaming else "false")
    assert rig.admission.in_flight == 0
    (ended,) = rig.ends()
    assert (ended.outcome, ended.detail[:21]) == ("cancelled", "stopped at the server")


@pytest.mark.parametrize(("done", "phase"), [(None, "waiting"), (2, "prefill")])
async def test_a_request_that_has_not_begun_to_answer_can_be_ended(
    rig: Any, chat_body: Any, done: int | None, phase: str
) -> None:
    task = await start(rig, chat_body)
    request_id = rig.engine.only
    if done is not None:
        rig.engine.prefill(request_id, done, done)
    status, told = await cancel(rig, request_id)
    assert (status, told["phase"]) == (200, phase)
    assert (await task).status_code == 400
    assert rig.admission.in_flight == 0


async def test_a_second_call_says_that_it_is_over(rig: Any, chat_body: Any) -> None:
    task = await start(rig, chat_body)
    request_id = rig.engine.only
    await cancel(rig, request_id)
    await task
    status, error = await cancel(rig, request_id)
    assert (status, error["code"], error["type"]) == (404, "request_not_live", "invalid_request_error")
    assert error["message"] == f"The request {request_id} is over already (cancelled)."
    assert len(rig.ends()) == 1


@pytest.mark.parametrize("request_id", ["req-000000000000", "nothing", "%1b%5b2J", "x" * 5000, "chatcmpl-"])
async def test_an_id_that_never_was_is_not_found_and_quoted_safely(rig: Any, request_id: str) -> None:
    status, error = await cancel(rig, request_id)
    assert (status, error["code"]) == (404, "request_not_live")
    assert error["message"].isprintable()
    assert len(error["message"]) < 250


async def test_another_stream_goes_on(rig: Any, chat_body: Any) -> None:
    first, second = await start(rig, chat_body), await start(rig, chat_body)
    ended, kept = rig.engine.open
    await cancel(rig, ended)
    await first
    assert tuple(rig.engine.open) == (kept,)
    rig.engine.say(kept, "fine")
    rig.engine.end(kept, "length")
    assert "fine" in (await (await second).get_data()).decode()


async def test_a_key_ends_its_own_requests_only_and_learns_nothing_of_others(
    rig: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_A", "k-a")
    monkeypatch.setenv("KEY_B", "k-b")
    rig.set_policy(server__keys=("alice = KEY_A", "bob = KEY_B"))
    task = await start(rig, chat_body, {"x-api-key": "k-a"})
    request_id = rig.engine.only
    assert (await cancel(rig, request_id))[0] == 401
    status, others = await cancel(rig, request_id, x_api_key="k-b")
    _, unknown = await cancel(rig, "req-000000000000", x_api_key="k-b")
    assert status == 404
    assert others["message"].replace(request_id, "req-000000000000") == unknown["message"]
    assert rig.admission.in_flight == 1
    assert (await cancel(rig, request_id, x_api_key="k-a"))[0] == 200
    await task


async def test_a_web_page_cancels_nothing(rig: Any, chat_body: Any) -> None:
    task = await start(rig, chat_body)
    assert (await cancel(rig, rig.engine.only, origin="https://evil.example"))[0] == 403
    assert rig.admission.in_flight == 1
    await cancel(rig, rig.engine.only)
    await task


async def test_only_post_cancels(rig: Any) -> None:
    answer = await rig.client.get("/v1/requests/req-1/cancel")
    assert answer.status_code == 405
