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
    ("GET", "/metrics"),
    ("POST", CHAT),
    ("POST", "/v1/requests/req-1/cancel"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/nothing/here"),
]
ANTHROPIC = [("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens")]


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


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "kind", "code"),
    [
        ("GET", "/v1/messages", {}, 405, "invalid_request_error", "method_not_allowed"),
        ("POST", "/v1/messages/batches", {}, 404, "not_found_error", "route_not_found"),
        ("POST", "/v1/messages", {"host": "evil.example"}, 403, "permission_error", "forbidden"),
        ("POST", "/v1/messages", {"origin": "https://evil.example"}, 403, "permission_error", "forbidden"),
        ("POST", "/v1/messages", {"content_encoding": "gzip"}, 400, "invalid_request_error", "invalid_request"),
        ("POST", "/v1/messages/count_tokens", {}, 400, "invalid_request_error", "invalid_request"),
    ],
)
async def test_at_and_below_messages_whatever_is_wrong_is_told_in_anthropics_dialect(
    rig: Any, method: str, path: str, headers: dict[str, str], status: int, kind: str, code: str
) -> None:
    answer = await call(rig, method, path, **headers)
    body = json.loads(await answer.get_data())
    assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["error"]["details"]["error_code"] == code
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


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
    for path in ("/v1/models", "/health", "/homebase/snapshot", "/metrics"):
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


@pytest.mark.parametrize(("method", "path"), [*EVERYWHERE, *ANTHROPIC])
async def test_with_a_key_set_every_path_wants_it(rig: Any, method: str, path: str) -> None:
    rig.set_policy(server__api_key="geheim")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x_api_key": "wrong"}):
        answer = await call(rig, method, path, **headers)
        assert answer.status_code == 401
        error = await read_error(answer)
        assert error.get("code", error.get("details", {}).get("error_code")) == "invalid_api_key"
        assert "geheim" not in (await answer.get_data()).decode()
    for headers in ({"authorization": "Bearer geheim"}, {"x_api_key": "geheim"}):
        assert (await call(rig, method, path, **headers)).status_code != 401


async def test_a_client_that_fills_both_places_needs_one_right_key(rig: Any) -> None:
    rig.set_policy(server__api_key="geheim")
    assert (await call(rig, "GET", "/health", authorization="Bearer unused", x_api_key="geheim")).status_code == 200
    assert (await call(rig, "GET", "/health", authorization="Bearer geheim", x_api_key="unused")).status_code == 200


async def test_who_asks_is_shown_and_their_key_never_is(
    rig: Any, chat_body: Any, speak: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("KEY_A", "very-secret-a")
    monkeypatch.setenv("KEYS_B", "very-secret-1,very-secret-2")
    rig.set_policy(server__keys=("alice = KEY_A",), server__api_keys_env="KEYS_B", server__api_key="very-secret-0")
    rig.engine.script = speak("x")
    for key in ("very-secret-a", "very-secret-2", "very-secret-0"):
        await rig.post(chat_body(), {"x-api-key": key, "user-agent": "curl/8", "x-session-id": "main"})
    await rig.post(chat_body(), {"authorization": "Bearer very-secret-b"})
    shown = [(stream.key, stream.client, stream.session) for stream in rig.streams()]
    assert shown == [
        ("alice", "alice curl/8", "alice/main"),
        ("key-2", "key-2 curl/8", "key-2/main"),
        ("api_key", "curl/8", "api_key/main"),
    ]
    snapshot = await (await call(rig, "GET", "/homebase/snapshot", x_api_key="very-secret-a")).get_data()
    assert b"very-secret" not in snapshot
    assert b"alice curl/8" in snapshot
    assert "very-secret" not in f"{rig.ring.after(0)} {caplog.text}"


async def test_a_key_that_is_not_asked_for_is_nobodys_name(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("x")
    await rig.post(chat_body(), {"authorization": "Bearer sk-of-another-service", "user-agent": "curl/8"})
    (stream,) = rig.streams()
    assert (stream.key, stream.client) == ("", "curl/8")
    assert "sk-of" not in f"{rig.build_snapshot()} {rig.ring.after(0)}"


async def test_a_listed_page_may_send_what_anthropics_clients_send(rig: Any) -> None:
    rig.set_policy(server__allowed_origins=("http://localhost:3000",), server__api_key="k")
    asked = "anthropic-dangerous-direct-browser-access,anthropic-version,content-type,x-api-key"
    preflight = await call(
        rig,
        "OPTIONS",
        CHAT,
        origin="http://localhost:3000",
        access_control_request_method="POST",
        access_control_request_headers=asked,
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-headers"] == asked
    assert "access-control-allow-credentials" not in preflight.headers
    answer = await call(rig, "GET", "/v1/models", origin="http://localhost:3000", x_api_key="k")
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


async def test_more_headers_than_anyone_sends_are_refused(rig: Any) -> None:
    answer = await call(rig, "GET", "/health", **{f"x_{n}": "y" for n in range(120)})
    assert answer.status_code == 431
    assert (await read_error(answer))["code"] == "head_too_large"


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
