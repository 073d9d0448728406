"""Chat completions through the whole application, with a scripted engine."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import msgspec
import pytest

from server.admission.wording import build_loading_refusal
from server.api.generation import door
from server.engine.request import Sampling


async def read_error(answer: Any) -> dict[str, Any]:
    return json.loads(await answer.get_data())["error"]


async def test_a_completion_is_whole_and_in_the_dialect(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    answer = await rig.post(chat_body("hi"))
    body = json.loads(await answer.get_data())
    request_id = answer.headers["x-request-id"]
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "id": f"chatcmpl-{request_id.removeprefix('req-')}",
        "object": "chat.completion",
        "model": "org/nano",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello wörld", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 13,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert rig.admission.in_flight == 0
    assert [end.outcome for end in rig.ends()] == ["stop"]


async def test_what_was_asked_reaches_the_engine(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("x", outcome="length")
    answer = await rig.post(chat_body("abc", temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=3, max_tokens=1))
    (request,) = rig.engine.requests.values()
    assert request.prompt_ids == tuple(b"abc")
    assert request.sampling == Sampling(0.5, 0.9, 7, 0.1, 3)
    assert request.max_tokens == 1
    assert request.stop_ids == rig.codec.stop_ids
    assert json.loads(await answer.get_data())["choices"][0]["finish_reason"] == "length"


async def test_penalties_bias_and_logprobs_reach_the_engine(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("x")
    asked = {"frequency_penalty": 1, "presence_penalty": -1, "repeat_penalty": 1.5, "logit_bias": {"7": 5}}
    await rig.post(chat_body(**asked, logprobs=True, top_logprobs=3))
    await rig.post(chat_body())
    asking, plain = rig.engine.requests.values()
    assert asking.sampling == Sampling(
        frequency_penalty=1.0, presence_penalty=-1.0, repetition_penalty=1.5, logit_bias=((7, 5.0),)
    )
    assert asking.top_logprobs == 3
    assert (plain.sampling, plain.top_logprobs) == (Sampling(), None)


async def test_without_an_output_limit_the_rest_of_the_context_is_used(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("x")
    await rig.post(chat_body("abc"))
    rig.set_policy(policy__max_context_tokens=100)
    await rig.post(chat_body("abc"))
    await rig.post(chat_body("abc", max_tokens=4000))
    assert [request.max_tokens for request in rig.engine.requests.values()] == [4093, 97, 97]


async def test_a_stop_string_ends_the_answer_and_the_work(rig: Any, chat_body: Any) -> None:
    def talk_on(engine: Any, request: Any) -> None:
        for piece in ("alpha be", "ta gam", "ma delta", " more"):
            engine.say(request.id, piece)

    rig.engine.script = talk_on
    answer = await rig.post(chat_body(stop=["beta gamma"]))
    body = json.loads(await answer.get_data())
    await rig.settle()
    assert body["choices"][0]["message"]["content"] == "alpha "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert rig.engine.cancelled == list(rig.engine.requests)
    assert rig.admission.in_flight == 0
    assert [end.outcome for end in rig.ends()] == ["stop"]


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "no-such-model-xyz"}, 404, "model_not_found", "model"),
        ({"messages": []}, 400, "invalid_request", "messages"),
        ({"tools": [{"type": "function"}]}, 400, "invalid_request", "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, 400, "unsupported_parameter", "tools[0].type"),
        ({"top_k": 258}, 400, "invalid_request", "top_k"),
        ({"logit_bias": {"257": 1}}, 400, "invalid_request", "logit_bias"),
        ({"max_tokens": 10**9}, 400, "invalid_request", "max_tokens"),
        (
            {"messages": [{"role": "user", "content": "x" * 4096}]},
            400,
            "context_length_exceeded",
            "messages",
        ),
        ({"messages": [{"role": "user", "content": "template, refuse"}]}, 400, "invalid_request", "messages"),
    ],
)
async def test_a_request_that_can_never_succeed_takes_no_slot_and_no_prefill(
    rig: Any, chat_body: Any, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    for streaming in (False, True):
        answer = await rig.post(chat_body(**{"stream": streaming, **fields}))
        error = await read_error(answer)
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
        assert error["type"] == "invalid_request_error"
        assert answer.headers["x-request-id"].startswith("req-")
    assert rig.admission.admitted_total == 0
    assert not rig.engine.requests
    assert not rig.refusals()


async def test_a_prompt_over_the_limit_is_told_both_numbers(rig: Any, chat_body: Any) -> None:
    error = await read_error(await rig.post(chat_body("x" * 5000)))
    assert "4,096" in error["message"]
    assert "5,000" in error["message"]


async def test_the_third_is_refused_with_the_numbers_and_counted(rig: Any, chat_body: Any) -> None:
    held = [asyncio.create_task(rig.post(chat_body())) for _ in range(2)]
    await rig.until(lambda: rig.admission.in_flight == 2)
    headers = {"user-agent": "OpenAI/Python 3.57.0", "x-session-id": "s1"}
    answer = await rig.post(chat_body("hello", stream=True, max_tokens=9), headers)
    error = await read_error(answer)
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert error["message"].startswith("Refused by homebase admission: 2 of 2 in flight")
    assert (error["type"], error["code"], error["param"]) == ("admission_refused", "in_flight_full", None)
    (refused,) = rig.refusals()
    assert refused.message == error["message"]
    assert refused.request_id == answer.headers["x-request-id"]
    assert (refused.status, refused.retry_after_s) == (429, int(answer.headers["retry-after"]))
    assert (refused.limit, refused.used, refused.code) == (2, 2, "in_flight_full")
    assert (refused.session, refused.lane, refused.client) == ("s1", "parent", "OpenAI/Python 3.57.0")
    assert (refused.prompt_tokens, refused.max_tokens) == (5, 9)
    for request_id in list(rig.engine.open):
        rig.engine.end(request_id, "stop")
    assert [(await done).status_code for done in held] == [200, 200]
    assert rig.admission.in_flight == 0


async def test_refusal_status_is_the_policys(rig: Any, chat_body: Any) -> None:
    rig.admission.drain()
    assert (await rig.post(chat_body())).status_code == 503
    rig.set_policy(policy__refusal_status=400)
    answer = await rig.post(chat_body())
    assert answer.status_code == 400
    assert "retry-after" not in answer.headers
    assert [refused.retry_after_s is None for refused in rig.refusals()] == [False, True]


async def test_while_the_model_loads_completions_are_refused_and_counted(rig: Any, chat_body: Any) -> None:
    class Loading:
        @property
        def vocab_size(self) -> int:
            raise build_loading_refusal()

    rig.codec = Loading()
    answer = await rig.post(chat_body())
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert (await read_error(answer))["code"] == "model_loading"
    (refused,) = rig.refusals()
    assert (refused.code, refused.limit, refused.used, refused.prompt_tokens) == ("model_loading", None, None, None)


async def test_a_large_request_is_refused_without_reading_its_prompt(rig: Any, chat_body: Any) -> None:
    rig.model = msgspec.structs.replace(rig.model, context_limit_tokens=200_000)
    rig.set_policy(policy__max_in_flight=1)
    held = asyncio.create_task(rig.post(chat_body()))
    await rig.until(lambda: rig.admission.in_flight)
    seen = len(rig.codec.seen)
    assert (await rig.post(chat_body("x" * 100_000))).status_code == 429
    assert len(rig.codec.seen) == seen
    assert rig.refusals()[0].prompt_tokens is None
    # So large that it may never fit: it is read, and told what is wrong for good.
    too_long = await rig.post(chat_body("x" * 500_000))
    assert (await read_error(too_long))["code"] == "context_length_exceeded"
    rig.engine.end(rig.engine.only, "stop")
    await held


async def test_twenty_at_one_barrier_fifty_times_are_two_admitted_each_time(rig: Any, chat_body: Any) -> None:
    for round_number in range(50):
        barrier = asyncio.Barrier(20)

        async def go(barrier: asyncio.Barrier) -> int:
            await barrier.wait()
            return (await rig.post(chat_body(stream=False))).status_code

        clients = [asyncio.create_task(go(barrier)) for _ in range(20)]
        await rig.until(lambda clients=clients: sum(client.done() for client in clients) >= 18)
        assert len(rig.engine.open) == 2
        assert rig.admission.in_flight == 2
        for request_id in list(rig.engine.open):
            rig.engine.end(request_id, "stop")
        statuses = sorted([await client for client in clients])
        assert statuses == [200] * 2 + [429] * 18
        assert len(rig.refusals()) == 18 * (round_number + 1)
    assert rig.admission.in_flight == 0
    assert rig.admission.peak_in_flight == 2
    assert rig.admission.admitted_total == 100


async def test_a_dead_engine_is_a_fault_that_is_not_to_be_retried(rig: Any, chat_body: Any) -> None:
    rig.engine.dead = "Out of memory."
    answer = await rig.post(chat_body())
    assert answer.status_code == 500
    assert answer.headers["x-should-retry"] == "false"
    assert await read_error(answer) == {
        "message": "Out of memory.",
        "type": "engine_error",
        "param": None,
        "code": "engine_dead",
    }
    assert rig.admission.in_flight == 0
    assert not rig.streams()


async def test_an_engine_that_dies_fails_what_waits_for_it(rig: Any, chat_body: Any) -> None:
    rig.engine.script = lambda engine, request: engine.die("Gone.")
    answer = await rig.post(chat_body())
    assert (answer.status_code, (await read_error(answer))["code"]) == (500, "engine_dead")
    assert rig.admission.in_flight == 0
    assert [(end.outcome, end.detail) for end in rig.ends()] == [("failed", "Gone.")]


async def test_a_sequence_that_fails_fails_its_own_request(rig: Any, chat_body: Any) -> None:
    rig.engine.script = lambda engine, request: engine.end(request.id, "failed", "Its scores are not numbers.")
    answer = await rig.post(chat_body())
    assert answer.status_code == 500
    assert (await read_error(answer))["message"] == "Its scores are not numbers."
    assert rig.ends()[0].outcome == "failed"


async def test_an_answer_that_the_operator_stops_says_so(rig: Any, chat_body: Any) -> None:
    rig.engine.script = lambda engine, request: engine.end(request.id, "cancelled")
    answer = await rig.post(chat_body())
    assert answer.status_code == 400
    assert answer.headers["x-should-retry"] == "false"
    assert (await read_error(answer))["code"] == "stream_stopped"
    assert rig.ends()[0].outcome == "cancelled"
    assert "stopped at the server" in rig.ends()[0].detail


async def test_an_unforeseen_fault_is_a_500_with_its_id_and_leaves_no_slot(
    rig: Any, chat_body: Any, speak: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.engine.script = speak("x")
    monkeypatch.setattr("server.api.generation.reply.Reply.fold", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR):
        answer = await rig.post(chat_body())
    assert answer.status_code == 500
    error = await read_error(answer)
    assert error["code"] == "internal_error"
    assert answer.headers["x-request-id"] in error["message"]
    assert "ZeroDivisionError" in caplog.text
    await rig.settle()
    assert rig.admission.in_flight == 0
    assert [end.outcome for end in rig.ends()] == ["failed"]


async def test_a_fault_between_slot_and_engine_gives_the_slot_back(
    rig: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.engine, "submit", lambda request: 1 / 0)
    assert (await rig.post(chat_body())).status_code == 500
    assert rig.admission.in_flight == 0


async def test_a_row_shows_who_asked_and_what_for(rig: Any, chat_body: Any) -> None:
    headers = {"user-agent": "opencode/1.18", "x-session-id": "s2", "x-parent-session-id": "s1"}
    task = asyncio.create_task(rig.post(chat_body("hello", max_tokens=50), headers))
    await rig.until(lambda: rig.engine.open)
    (row,) = rig.streams()
    assert (row.session, row.parent_session, row.lane, row.client) == ("s2", "s1", "child", "opencode/1.18")
    assert (row.model, row.prompt_tokens, row.max_tokens, row.context_limit_tokens) == ("org/nano", 5, 50, 4096)
    assert not row.streaming
    rig.engine.end(rig.engine.only, "stop")
    await task


@pytest.mark.parametrize(
    ("headers", "priority"),
    [({}, 0), ({"x-session-id": "s1"}, 0), ({"x-session-id": "s2", "x-parent-session-id": "s1"}, 1)],
)
async def test_a_childs_prompt_yields_to_a_parents(
    rig: Any, chat_body: Any, speak: Any, headers: dict[str, str], priority: int
) -> None:
    rig.engine.script = speak("x")
    await rig.post(chat_body("hello"), headers)
    assert [request.priority for request in rig.engine.requests.values()] == [priority]


async def test_two_at_once_keep_their_own_parameters(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("x")
    answers = await asyncio.gather(
        rig.post(chat_body(temperature=0)), rig.post(chat_body(temperature=0.7, max_tokens=50))
    )
    assert [answer.status_code for answer in answers] == [200, 200]
    temperatures = {request.sampling.temperature: request.max_tokens for request in rig.engine.requests.values()}
    assert temperatures == {0: 4094, 0.7: 50}


async def test_a_compressed_body_is_refused_in_words(rig: Any) -> None:
    answer = await rig.post(b"\x1f\x8b", {"content-encoding": "gzip"})
    assert answer.status_code == 400
    assert "Compressed" in (await read_error(answer))["message"]


async def test_a_chat_template_without_end_is_given_up_and_costs_no_slot(
    rig: Any, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(door, "ENCODE_S", 0.05)
    monkeypatch.setattr(rig.codec, "encode_chat", lambda *_, **__: over.wait(20))
    try:
        answers = [await asyncio.wait_for(rig.post(chat_body()), 5) for _ in range(4)]
    finally:
        over.set()
    assert [answer.status_code for answer in answers] == [400] * 4
    assert "within 0.05 s" in (await read_error(answers[0]))["message"]
    assert rig.admission.admitted_total == 0
