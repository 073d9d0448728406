"""Which requests are passed on, and what passes: bodies, headers, statuses, streams."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from server.upstreams import breaker, health

BODY = (
    b'{ "model" : "far",  "stream":true, "messages":[{"role":"user","content":"say \\u00e9 \\"model\\""}], "x": 1e2 }'
)


async def read(answer: Any) -> bytes:
    return await answer.get_data()


async def test_a_model_of_an_upstream_is_answered_by_it_byte_for_byte(rig: Any, upstream: Any, one: Any) -> None:
    one()
    answer = await rig.post(BODY)
    assert (upstream.only.target, upstream.only.body) == ("/v1/chat/completions", BODY)
    events = [line for line in (await read(answer)).decode().split("\n\n") if line]
    assert len(events) == 6
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[1].removeprefix("data: "))["choices"][0]["delta"] == {"content": "one"}
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-request-id"].startswith("req-")
    assert not rig.engine.requests


async def test_our_own_model_stays_ours(rig: Any, upstream: Any, one: Any, speak: Any, chat_body: Any) -> None:
    one(["*"])
    rig.engine.script = speak("here")
    for name in ("nano", "org/nano", None):
        answer = json.loads(await read(await rig.post(chat_body() | {"model": name})))
        assert answer["choices"][0]["message"]["content"] == "here"
    assert upstream.visits == []


async def test_an_alias_renames_the_model_and_nothing_else(rig: Any, upstream: Any, one: Any) -> None:
    one(aliases={"gpt-5": "big", "big": "far"})
    await read(await rig.post(BODY.replace(b'"far"', b'"gpt-5"')))
    assert upstream.only.body == BODY


MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", MESSAGES),
        ("/v1/messages", {**MESSAGES, "max_tokens": 9}),
        ("/v1/messages/count_tokens", MESSAGES),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [65]}),
    ],
)
async def test_an_alias_of_our_own_model_is_answered_here(
    rig: Any, use: Any, speak: Any, path: str, fields: dict[str, Any]
) -> None:
    use(aliases={"gpt-5": "nano"})
    rig.engine.script = speak("here")
    assert (await rig.post({"model": "gpt-5", **fields}, path=path)).status_code == 200


async def test_an_alias_of_our_own_model_is_shown_as_a_model(rig: Any, use: Any) -> None:
    use(aliases={"gpt-5": "nano"})
    shown = json.loads(await read(await rig.client.get("/v1/models/gpt-5")))
    assert (shown["id"], shown["context_length"]) == ("gpt-5", 4096)


async def test_a_model_of_nobody_is_told_with_all_names(rig: Any, one: Any, chat_body: Any) -> None:
    one(["far", "gpt-*"], aliases={"other": "far", "lost": "nowhere"})
    answer = await rig.post(chat_body() | {"model": "unheard-of"})
    assert answer.status_code == 404
    error = json.loads(await read(answer))["error"]
    assert error["code"] == "model_not_found"
    assert error["message"].endswith("available: 'org/nano', 'other', 'far'.")


async def test_the_list_of_models_has_aliases_and_upstreams(rig: Any, one: Any) -> None:
    one(["far", "gpt-*"], aliases={"mine": "nano", "other": "far"})
    listed = json.loads(await read(await rig.client.get("/v1/models")))["data"]
    owners = [(model["id"], model["owned_by"]) for model in listed]
    here = "homebase-console"
    assert owners == [("org/nano", here), ("mine", here), ("other", "far-away"), ("far", "far-away")]
    assert json.loads(await read(await rig.client.get("/v1/models/far")))["owned_by"] == "far-away"


async def test_no_key_and_no_hop_of_the_client_goes_on(
    rig: Any, upstream: Any, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.upstreams, "_environment", {"FAR_KEY": "secret-of-theirs"})
    one(api_key_env="FAR_KEY")
    sent = {
        "authorization": "Bearer mine",
        "x-api-key": "mine",
        "cookie": "a=mine",
        "x-goog-api-key": "mine",
        "proxy-authorization": "mine",
        "x-forwarded-for": "10.0.0.1",
        "connection": "keep-alive, x-hop",
        "x-hop": "mine",
        "te": "trailers",
        "accept-encoding": "gzip",
        "user-agent": "claude-cli/2",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "a,b",
        "x-claude-code-session-id": "s1",
    }
    await read(await rig.post(BODY, sent))
    got = upstream.only.headers
    assert "mine" not in json.dumps(got)
    assert got["authorization"] == "Bearer secret-of-theirs"
    assert got["host"] == f"127.0.0.1:{upstream.port}"
    assert got["content-length"] == str(len(BODY))
    assert got["accept-encoding"] == "identity"
    for name in ("user-agent", "anthropic-version", "anthropic-beta", "x-claude-code-session-id"):
        assert got[name] == sent[name]
    assert not {"x-forwarded-for", "x-hop", "te"} & got.keys()


async def test_headers_that_are_no_ascii_pass_both_ways(rig: Any, upstream: Any, one: Any, port: int) -> None:
    one()

    async def answer(visit: Any) -> None:
        await visit.answer(200, {}, "x-their: grüße 日本")

    upstream.script = answer
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        got = await client.post(url, content=BODY, headers={b"x-title": "grüße 日本".encode()})
    assert got.status_code == 200
    assert upstream.only.headers["x-title"].encode("latin-1").decode() == "grüße 日本"
    assert next(value for name, value in got.headers.raw if name == b"x-their").decode() == "grüße 日本"


async def test_nothing_is_taken_from_the_environment_but_the_key(
    rig: Any, upstream: Any, one: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    one()
    assert (await rig.post(BODY)).status_code == 200
    assert "authorization" not in upstream.only.headers


async def test_it_is_looked_at_while_it_is_in_use_and_comes_back_by_itself(
    rig: Any, upstream: Any, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LOOK_S", 0.01)
    monkeypatch.setattr(health, "LEAST_LOOK_S", 0.01)
    monkeypatch.setattr(breaker, "OPEN_S", 0.05)
    monkeypatch.setattr(rig.upstreams, "_environment", {"FAR_KEY": "secret"})
    one(api_key_env="FAR_KEY")
    speak, seen = upstream.script, []

    async def fault(visit: Any) -> None:
        seen.append((visit.method, visit.target, visit.headers.get("authorization")))
        await visit.answer(500, {})

    def state() -> str:
        return rig.build_snapshot().upstreams[0].state

    upstream.script = fault
    await read(await rig.post(BODY))
    await rig.until(lambda: state() == "down")
    assert ("GET", "/v1/models", "Bearer secret") in seen
    assert len(upstream.visits) == 1, "looks alone have found out"
    upstream.script = speak
    await rig.until(lambda: state() == "up")
    looks = upstream.looks
    await rig.until(lambda: upstream.looks > looks)
    monkeypatch.setattr(health, "IN_USE_S", 0.0)
    await rig.until(lambda: rig.upstreams._watches["far-away"].done())


async def test_the_key_is_in_the_header_of_the_dialect(
    rig: Any, upstream: Any, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.upstreams, "_environment", {"FAR_KEY": "secret"})
    one(api_key_env="FAR_KEY")

    async def answer(visit: Any) -> None:
        await visit.answer(200, {"type": "message", "usage": {"input_tokens": 3, "output_tokens": 2}})

    upstream.script = answer
    body = json.dumps({"model": "far", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}).encode()
    await read(await rig.post(body, path="/v1/messages?beta=true"))
    assert upstream.only.target == "/v1/messages?beta=true"
    assert upstream.only.headers["x-api-key"] == "secret"
    assert "authorization" not in upstream.only.headers


@pytest.mark.parametrize("key", ["", "two\nlines", "späß"])
async def test_a_key_that_is_missing_or_none_is_told_and_never_shown(
    rig: Any, upstream: Any, one: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.upstreams, "_environment", {"FAR_KEY": key})
    one(api_key_env="FAR_KEY")
    answer = await rig.post(BODY)
    assert answer.status_code == 502
    error = json.loads(await read(answer))["error"]
    assert error["code"] == "upstream_unavailable"
    assert "FAR_KEY" in error["message"]
    assert not key or key not in error["message"]
    assert upstream.visits == []
    assert rig.ends()[0].outcome == "failed"


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_a_status_and_its_body_are_passed_on(rig: Any, upstream: Any, one: Any, status: int) -> None:
    one()
    told = b'{"error": {"message":  "their words"}}'

    async def answer(visit: Any) -> None:
        await visit.answer(status, told, "retry-after: 7", "set-cookie: a=b", "x-their: 1", "x-hop: 1")

    upstream.script = answer
    got = await rig.post(BODY)
    assert (got.status_code, await read(got)) == (status, told)
    assert got.headers["retry-after"] == "7"
    assert got.headers["x-their"] == "1"
    assert "set-cookie" not in got.headers
    assert got.headers["content-length"] == str(len(told))
    (end,) = rig.ends()
    assert (end.outcome, end.detail) == ("failed", f"the upstream far-away answered with status {status}")


async def test_a_redirect_is_not_followed(rig: Any, upstream: Any, one: Any) -> None:
    one()

    async def answer(visit: Any) -> None:
        await visit.answer(307, {}, f"location: {upstream.url}/elsewhere")

    upstream.script = answer
    got = await rig.post(BODY)
    assert got.status_code == 502
    assert "redirect" in json.loads(await read(got))["error"]["message"]
    assert len(upstream.visits) == 1


async def test_counting_tokens_is_passed_on_without_a_row(rig: Any, upstream: Any, one: Any) -> None:
    one(governed=True)

    async def answer(visit: Any) -> None:
        await visit.answer(200, {"input_tokens": 12})

    upstream.script = answer
    body = json.dumps({"model": "far", "messages": [{"role": "user", "content": "x"}]}).encode()
    counted = await rig.post(body, path="/v1/messages/count_tokens")
    assert json.loads(await read(counted)) == {"input_tokens": 12}
    assert (rig.ends(), rig.admission.admitted_total) == ([], 0)


async def test_a_row_shows_the_upstream_and_its_usage_is_the_truth(rig: Any, upstream: Any, one: Any) -> None:
    one()
    go = asyncio.Event()

    async def answer(visit: Any) -> None:
        await visit.head()
        await visit.event({"choices": [{"delta": {"content": "a"}}]})
        await visit.event({"choices": [{"delta": {"reasoning_content": "b"}}]})
        await go.wait()
        await visit.event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": 20, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 5}}
        await visit.event({"choices": [], "usage": usage})
        await visit.send(b"data: [DONE]\n\n")
        await visit.end()

    upstream.script = answer
    task = asyncio.create_task(rig.post(BODY, {"x-session-id": "s1", "x-parent-session-id": "p1"}))
    await rig.until(lambda: rig.streams() and rig.streams()[0].completion_tokens == 2)
    (row,) = rig.streams()
    assert (row.upstream, row.model, row.lane, row.session, row.phase) == ("far-away", "far", "child", "s1", "decode")
    assert row.ttft_s is not None
    assert rig.admission.in_flight == 0
    assert rig.build_snapshot().engine.busy is False
    go.set()
    await read(await task)
    (row,) = rig.streams()
    assert (row.outcome, row.prompt_tokens, row.completion_tokens, row.cached_tokens) == ("length", 20, 8, 5)
    (end,) = rig.ends()
    assert (end.prompt_tokens, end.completion_tokens) == (20, 8)


async def test_the_metrics_count_by_upstream_and_know_no_name_of_a_client(rig: Any, upstream: Any, one: Any) -> None:
    one(["*"])
    await read(await rig.post(BODY.replace(b'"far"', b'"made-up-by-a-client"')))

    async def answer(visit: Any) -> None:
        await visit.answer(500, {})

    upstream.script = answer
    await read(await rig.post(BODY))
    text = (await read(await rig.client.get("/metrics"))).decode()
    assert 'homebase_upstream_requests_total{upstream="far-away"} 2.0' in text
    assert 'homebase_upstream_failures_total{upstream="far-away"} 1.0' in text
    assert "made-up-by-a-client" not in text
    (view,) = rig.build_snapshot().upstreams
    assert (view.state, view.requests_total, view.failures_total, view.in_flight) == ("failing", 2, 1, 0)


@pytest.mark.parametrize("governed", [False, True])
@pytest.mark.parametrize("tokens", [-1, 0, 2**63, 10**30])
async def test_no_number_and_no_text_of_either_side_breaks_the_snapshot(
    rig: Any, upstream: Any, one: Any, tokens: int, governed: bool
) -> None:
    one(["*"], governed=governed)

    async def answer(visit: Any) -> None:
        await visit.head()
        await visit.event({"choices": [{"delta": {"content": "a"}}]})
        await visit.event({"usage": {"prompt_tokens": tokens, "completion_tokens": tokens}})
        await visit.event({"error": {"message": "\x1b[2J"}})
        await visit.end()

    upstream.script = answer
    body = {"model": "\x1b[2J", "stream": True, "max_tokens": tokens, "messages": []}
    await read(await rig.post(body))
    assert (await rig.client.get("/homebase/snapshot")).status_code == 200
    (row,) = rig.streams()
    assert (row.outcome, row.outcome_detail) == ("failed", "the upstream said: \\x1b[2J")
    assert row.model == "\\x1b[2J"
    assert rig.admission.in_flight == 0


async def test_a_body_that_cannot_be_read_gets_our_own_words(rig: Any, one: Any) -> None:
    one(["*"])
    for body, told in ((b"{", "not valid JSON"), (b'{"model": 3, "messages": []}', "model")):
        answer = await rig.post(body)
        assert answer.status_code == 400
        assert told in json.loads(await read(answer))["error"]["message"]


async def test_without_a_local_model_only_upstreams_answer(rig: Any, upstream: Any, one: Any, chat_body: Any) -> None:
    one(["far"])
    rig.model = msgspec.structs.replace(rig.model, id="", path="", state="none")
    assert (await rig.post(BODY)).status_code == 200
    for fields in ({"model": "nano"}, {"model": None}, {"model": ""}):
        answer = await rig.post(chat_body() | fields)
        assert answer.status_code == 404, fields
    assert [each["id"] for each in json.loads(await read(await rig.client.get("/v1/models")))["data"]] == ["far"]
    ready = await rig.client.get("/ready")
    assert ready.status_code == 200
    rig.policy = type(rig.policy)()
    answer = json.loads(await read(await rig.post(chat_body())))
    assert answer["error"]["code"] == "model_not_found"
