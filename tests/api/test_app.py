"""Routes, the guard in front of them, and what is not there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
EVERYWHERE = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/nano"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/homebase/snapshot"),
    ("POST", CHAT),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/nothing/here"),
]


async def call(rig: Any, method: str, path: str, **headers: str) -> Any:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await rig.client.open(path, method=method, headers=sent)


async def read_error(answer: Any) -> dict[str, Any]:
    return json.loads(await answer.get_data())["error"]


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
async def test_every_answer_carries_an_id_and_the_servers_name_and_no_cors(rig: Any, method: str, path: str) -> None:
    answer = await call(rig, method, path)
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.headers["server"] == "homebase-console"
    assert not [name for name in answer.headers if name[0].lower().startswith("access-control")]


async def test_ids_differ(rig: Any) -> None:
    ids = {(await call(rig, "GET", "/health")).headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "route_not_found"),
        ("POST", "/chat/completions", 404, "route_not_found"),
        ("GET", "/v1/nothing", 404, "route_not_found"),
        ("GET", "/static/x", 404, "route_not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models/nano", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_answered_in_the_dialect(
    rig: Any, method: str, path: str, status: int, code: str
) -> None:
    answer = await call(rig, method, path)
    error = await read_error(answer)
    assert (answer.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert ("allow" in answer.headers) == (status == 405)
    assert f"{method} was used" in error["message"] or "POST /v1/chat/completions" in error["message"]


async def test_a_path_without_end_or_with_control_characters_is_quoted_safely(rig: Any) -> None:
    answer = await call(rig, "GET", "/" + "%1b" * 1000)
    message = (await read_error(answer))["message"]
    assert "\x1b" not in message
    assert len(message) < 2000


@pytest.mark.parametrize("path", ["/v1/models", "/health", CHAT])
async def test_options_say_what_a_path_takes(rig: Any, path: str) -> None:
    answer = await call(rig, "OPTIONS", path)
    assert answer.status_code == 200
    assert "OPTIONS" in answer.headers["allow"]


async def test_head_is_get_without_the_body(rig: Any) -> None:
    for path in ("/v1/models", "/health", "/homebase/snapshot"):
        assert (await call(rig, "HEAD", path)).status_code == 200


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
async def test_a_foreign_host_or_page_is_refused_everywhere(rig: Any, method: str, path: str) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        answer = await call(rig, method, path, **headers)
        assert answer.status_code == 403
        assert (await read_error(answer))["code"] == "forbidden"
        assert "access-control-allow-origin" not in answer.headers
    assert not rig.engine.requests


async def test_a_foreign_pages_preflight_is_refused(rig: Any) -> None:
    answer = await call(rig, "OPTIONS", CHAT, origin="https://evil.example", access_control_request_method="POST")
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


async def test_a_listed_page_may_ask_first_and_then_call(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.set_policy(server__allowed_origins=("http://localhost:3000",), server__api_key="k")
    rig.engine.script = speak("x")
    origin = "http://localhost:3000"
    preflight = await call(
        rig,
        "OPTIONS",
        CHAT,
        origin=origin,
        access_control_request_method="POST",
        access_control_request_headers="authorization",
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == origin
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    assert {"GET", "POST", "DELETE"} <= set(preflight.headers["access-control-allow-methods"].split(", "))
    answer = await rig.post(chat_body(), {"origin": origin, "authorization": "Bearer k"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    refused = await rig.post(b"{", {"origin": origin, "authorization": "Bearer k"})
    assert refused.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
async def test_with_a_key_set_every_path_wants_it(rig: Any, method: str, path: str) -> None:
    rig.set_policy(server__api_key="geheim")
    for headers in ({}, {"authorization": "Bearer wrong"}):
        answer = await call(rig, method, path, **headers)
        assert answer.status_code == 401
        assert (await read_error(answer))["code"] == "invalid_api_key"
        assert "geheim" not in (await answer.get_data()).decode()
    assert (await call(rig, method, path, authorization="Bearer geheim")).status_code != 401


async def test_the_host_rule_follows_the_address_that_was_bound_and_not_a_later_edit(rig: Any) -> None:
    rig.set_policy(server__host="0.0.0.0")
    assert (await call(rig, "GET", "/health", host="evil.example")).status_code == 403


async def test_nothing_but_completions_needs_or_counts_a_slot(rig: Any, chat_body: Any) -> None:
    held = [asyncio.create_task(rig.post(chat_body())) for _ in range(2)]
    await rig.until(lambda: rig.admission.in_flight == 2)
    for method, path in [*EVERYWHERE, ("OPTIONS", CHAT), ("HEAD", "/v1/models")]:
        if method != "POST":
            assert (await call(rig, method, path)).status_code in (200, 404)
    assert rig.admission.admitted_total == 2
    assert not rig.refusals()
    for request_id in list(rig.engine.open):
        rig.engine.end(request_id, "stop")
    await asyncio.gather(*held)
