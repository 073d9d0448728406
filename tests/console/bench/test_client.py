"""The streams of a fan-out against a server that answers as told: refusals, waits, faults."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from console.bench import client as module
from console.bench.client import Client, Seen
from console.bench.fan_out import Case, Outcome
from server.errors import StartupError

ANSWER = "".join(
    f"data: {json.dumps(event)}\n\n"
    for event in (
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": 2}},
    )
)
DONE = "data: [DONE]\n\n"


def refuse(wait: str | None = "0", code: str = "in_flight_full") -> httpx.Response:
    body = {"error": {"message": f"No: {code}.", "code": code}}
    return httpx.Response(429, json=body, headers={} if wait is None else {"Retry-After": wait})


async def run(streams: int, answer: Callable[[httpx.Request], httpx.Response]) -> Outcome:
    def reply(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/tokenize":
            words = json.loads(request.content)["messages"][0]["content"].split()
            return httpx.Response(200, json={"count": len(words)})
        return answer(request)

    client = Client("http://test", transport=httpx.MockTransport(reply))
    try:
        return await client.run(Case("on", 64, streams), "m", 16, 5)
    finally:
        await client.close()


async def test_the_first_stream_is_the_parent_of_the_others():
    seen: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers["x-homebase-session"], request.headers.get("x-homebase-parent-session")))
        return httpx.Response(200, text=ANSWER + DONE)

    outcome = await run(3, answer)
    parent = next(session for session, above in seen if above is None)
    assert sorted(above or "" for _, above in seen) == ["", parent, parent]
    assert len({session for session, _ in seen}) == 3
    assert outcome.faults == []
    assert all(turn.ttft_s is not None and turn.completion_tokens == 2 and turn.pieces == 2 for turn in outcome.turns)


async def test_who_is_refused_waits_as_told_and_comes_again(monkeypatch: pytest.MonkeyPatch):
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    answers = iter([refuse("7"), refuse("3", "child_lane_full"), refuse("9999")])
    outcome = await run(1, lambda _: next(answers, httpx.Response(200, text=ANSWER + DONE)))
    assert waited == [7, 3, module.LONGEST_WAIT_S]
    assert outcome.turns[0].refusals == ("in_flight_full", "child_lane_full", "in_flight_full")
    assert outcome.turns[0].fault is None


async def test_a_refusal_for_good_ends_the_turn_with_its_sentence():
    outcome = await run(2, lambda request: refuse(None, "depth_exceeded"))
    assert outcome.faults == ["No: depth_exceeded."]
    assert outcome.refusals == 0


async def test_nobody_waits_for_ever_for_others_that_do_not_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_LONELY_REFUSALS", 2)
    outcome = await run(1, lambda _: refuse())
    assert outcome.faults == ["No: in_flight_full."]
    assert outcome.refusals == 2


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (ANSWER.replace("length", ""), "ended before"),
        ('data: {"error": {"message": "The engine broke."}}\n\n' + DONE, "The engine broke."),
    ],
)
async def test_a_stream_that_breaks_is_a_fault(body: str, fault: str):
    outcome = await run(1, lambda _: httpx.Response(200, text=body))
    assert fault in outcome.faults[0]


async def test_a_connection_that_breaks_is_a_fault():
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone")

    assert (await run(1, answer)).faults == ["ConnectError: gone"]


def test_the_first_token_is_the_first_that_says_anything():
    seen = Seen([])
    for number, line in enumerate((ANSWER + DONE).splitlines()):
        seen.take(line, number)
    assert seen.stamps_s == [2, 4]
    assert seen.finished


async def test_a_server_that_is_not_there_is_told():
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone")

    client = Client("http://test", transport=httpx.MockTransport(answer))
    with pytest.raises(StartupError, match="http://test does not answer"):
        await client.read_served()
    await client.close()
