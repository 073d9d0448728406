"""Stopping a stream, draining, resuming; and who may."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

OPERATIONS = [
    ("PUT", "/homebase/policy"),
    ("POST", "/homebase/streams/req-1/stop"),
    ("POST", "/homebase/drain"),
    ("POST", "/homebase/resume"),
]
LOOKS = [
    "/homebase/snapshot",
    "/homebase/policy",
    "/homebase/sessions",
    "/metrics",
    "/v1/models",
    "/v1/models/nano",
    "/health",
]


async def call(rig: Any, method: str, path: str, **headers: str) -> tuple[int, Any]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await rig.client.open(path, method=method, headers=sent)
    data = await answer.get_data()
    return answer.status_code, json.loads(data) if answer.mimetype == "application/json" and data else data


@pytest.fixture
def keys(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alice may do all, and the board may look."""
    monkeypatch.setenv("KEY_A", "k-alice")
    monkeypatch.setenv("KEY_B", "k-board")
    rig.set_policy(server__keys=("alice = KEY_A", "board = KEY_B"), server__read_only_keys=("board",))


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("prefix", ["req-", "chatcmpl-", ""])
async def test_the_operator_stops_anyones_stream_by_any_form_of_its_id(rig: Any, chat_body: Any, prefix: str) -> None:
    rig.set_policy(server__api_key="k-operator")
    task = asyncio.create_task(rig.post(chat_body("hello"), {"x-api-key": "k-alice"}))
    await rig.until(lambda: rig.engine.open)
    request_id = rig.engine.only
    path = f"/homebase/streams/{prefix}{request_id.removeprefix('req-')}/stop"
    status, told = await call(rig, "POST", path, x_api_key="k-operator")
    assert (status, told["id"], told["phase"]) == (200, request_id, "waiting")
    assert (await task).status_code == 400
    assert rig.done == [("stop", "api_key")]
    status, told = await call(rig, "POST", path, x_api_key="k-operator")
    assert (status, told["error"]["code"]) == (404, "request_not_live")


async def test_a_stream_that_never_was_is_not_found(rig: Any) -> None:
    status, told = await call(rig, "POST", "/homebase/streams/req-none/stop")
    assert (status, told["error"]["code"]) == (404, "request_not_live")


async def test_draining_lets_what_runs_end_and_takes_nothing_until_it_is_undone(
    rig: Any, chat_body: Any, speak: Any
) -> None:
    task = asyncio.create_task(rig.post(chat_body("hello")))
    await rig.until(lambda: rig.engine.open)
    status, told = await call(rig, "POST", "/homebase/drain")
    assert (status, told["draining"], told["in_flight"]) == (200, True, 1)
    refused = await rig.post(chat_body("two"))
    error = json.loads(await refused.get_data())["error"]
    assert (refused.status_code, error["code"]) == (503, "draining")
    assert "the server takes nothing new" in error["message"]
    rig.engine.say(rig.engine.only, "done")
    rig.engine.end(rig.engine.only, "stop")
    assert (await task).status_code == 200
    assert (await call(rig, "POST", "/homebase/drain"))[1]["in_flight"] == 0
    status, told = await call(rig, "POST", "/homebase/resume")
    assert (status, told["draining"]) == (200, False)
    rig.engine.script = speak("x")
    assert (await rig.post(chat_body())).status_code == 200
    assert rig.done == [("drain", "someone"), ("drain", "someone"), ("resume", "someone")]


@pytest.mark.usefixtures("keys")
async def test_who_drains_is_named_by_their_key(rig: Any) -> None:
    assert (await call(rig, "POST", "/homebase/drain", authorization="Bearer k-alice"))[0] == 200
    assert rig.done == [("drain", "alice")]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_a_foreign_page_does_nothing(rig: Any, method: str, path: str) -> None:
    for origin in ("https://evil.example", "null"):
        assert (await call(rig, method, path, origin=origin))[0] == 403
        assert (await call(rig, "OPTIONS", path, origin=origin, access_control_request_method=method))[0] == 403
    assert (await call(rig, method, path, host="evil.example"))[0] == 403
    assert rig.done == []


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *OPERATIONS,
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/responses"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/requests/req-1/cancel"),
        ("POST", "/tokenize"),
        ("POST", "/metrics"),
        ("GET", "/ready"),
        ("GET", "/openapi.json"),
        ("GET", "/homebase/"),
        ("GET", "/v1/modelsx"),
        ("GET", "/nothing"),
    ],
)
async def test_a_read_only_key_does_nothing_else(rig: Any, method: str, path: str) -> None:
    status, told = await call(rig, method, path, x_api_key="k-board")
    assert status == 403
    error = told["error"]
    assert error.get("code", error.get("details", {}).get("error_code")) == "key_is_read_only"
    assert "The key board may only read /homebase/..." in error["message"]
    assert (await call(rig, method, path, x_api_key="k-alice"))[0] != 403


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("path", LOOKS)
async def test_a_read_only_key_may_look(rig: Any, path: str) -> None:
    for method in ("GET", "HEAD"):
        assert (await call(rig, method, path, x_api_key="k-board"))[0] == 200
    assert (await call(rig, "GET", path))[0] == 401
