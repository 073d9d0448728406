"""The streams of a fan-out: they ask as agents do, and come again when refused. Knows HTTP and no policy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from console.bench.fan_out import Case, Outcome, Turn
from console.bench.prompts import fit_prompt
from server.errors import StartupError

SILENCE_S = 600.0
"""A stream that says nothing for so long has failed; ours sends a comment every few seconds."""

LONGEST_WAIT_S = 60.0
"""Of a Retry-After, which no server of ours exceeds."""

MOST_LONELY_REFUSALS = 10
"""In a row, while no stream of the fan-out runs: by then waiting for the others has no sense."""


class Served(msgspec.Struct, frozen=True):
    """What a server says of its model."""

    model: str
    context_tokens: int | None


class Seen(msgspec.Struct):
    """What of one answer has come so far."""

    stamps_s: list[float]
    usage: Mapping[str, Any] = {}
    finished: bool = False
    fault: str | None = None

    def take(self, line: str, now_s: float) -> None:
        """One line of the event stream."""
        if not line.startswith("data:") or line.endswith("[DONE]"):
            return
        event: dict[str, Any] = json.loads(line[5:])
        if "error" in event:
            self.fault = _sentence(event, 200)
            return
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            self.finished = self.finished or bool(choice.get("finish_reason"))
            if any(value for name, value in (choice.get("delta") or {}).items() if name != "role"):
                self.stamps_s.append(now_s)


class Client:
    """One server, asked by a parent and its children."""

    def __init__(self, url: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`url` is the server's root, without /v1."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=SILENCE_S,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        self.url = url
        self._streaming = 0

    async def close(self) -> None:
        """Close its connections, which ends streams that are still open."""
        await self._http.aclose()

    async def read_served(self) -> Served:
        """The first model of /v1/models. Raises StartupError when there is none to be had."""
        listed = (await self._get("/v1/models"))["data"]
        if not listed:
            raise StartupError(f"{self.url} serves no model; give --url of a server that has one.")
        return Served(listed[0]["id"], listed[0].get("context_length"))

    async def read_snapshot(self) -> dict[str, Any]:
        """What the server says of itself."""
        return await self._get("/homebase/snapshot")

    async def write_prompts(self, case: Case, model: str, seed: int) -> list[str]:
        """A prompt for each stream, none beginning as another does."""

        async def count(prompt: str) -> int:
            body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
            answer = await self._http.post("/tokenize", json=body)
            if answer.status_code != 200:
                raise StartupError(f"{self.url} does not count tokens: {_sentence(_read(answer), answer.status_code)}")
            return answer.json()["count"]

        return [await fit_prompt(case.context_tokens, seed + index, count) for index in range(case.streams)]

    async def run(self, case: Case, model: str, tokens: int, seed: int) -> Outcome:
        """Start all streams of a fan-out at the same moment and wait until each of them is over."""
        prompts = await self.write_prompts(case, model, seed)
        started = time.perf_counter()
        turns = await asyncio.gather(
            *(self._run_turn(prompt, model, tokens, _name(seed, index)) for index, prompt in enumerate(prompts))
        )
        return Outcome(case, tuple(turns), time.perf_counter() - started)

    async def _run_turn(self, prompt: str, model: str, tokens: int, headers: Mapping[str, str]) -> Turn:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        started, refusals, lonely = time.perf_counter(), list[str](), 0
        while True:
            try:
                async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                    if response.status_code == 200:
                        seen = await self._follow(response)
                        return _judge(seen, started, time.perf_counter(), tuple(refusals))
                    await response.aread()
            except httpx.HTTPError as error:
                return _fail(f"{type(error).__name__}: {error}", started, refusals)
            document, wait_s = _read(response), _find_wait(response)
            lonely = 0 if self._streaming else lonely + 1
            if wait_s is None or lonely > MOST_LONELY_REFUSALS:
                return _fail(_sentence(document, response.status_code), started, refusals)
            refusals.append(str(_error(document).get("code") or response.status_code))
            await asyncio.sleep(wait_s)

    async def _follow(self, response: httpx.Response) -> Seen:
        seen = Seen([])
        self._streaming += 1
        try:
            async for line in response.aiter_lines():
                seen.take(line, time.perf_counter())
        finally:
            self._streaming -= 1
        return seen

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = await self._http.get(path, timeout=30)
        except httpx.HTTPError as error:
            raise StartupError(
                f"{self.url} does not answer ({type(error).__name__}); is a server running there?"
            ) from None
        if answer.status_code != 200:
            raise StartupError(f"{self.url}{path}: {_sentence(_read(answer), answer.status_code)}")
        return answer.json()


def _judge(seen: Seen, started_s: float, ended_s: float, refusals: tuple[str, ...]) -> Turn:
    fault = seen.fault or (None if seen.finished else "the stream ended before its answer did")
    stamps = seen.stamps_s
    return Turn(
        prompt_tokens=seen.usage.get("prompt_tokens", 0),
        completion_tokens=seen.usage.get("completion_tokens", 0),
        ttft_s=stamps[0] - started_s if stamps else None,
        decode_s=stamps[-1] - stamps[0] if len(stamps) > 1 else None,
        ended_s=ended_s - started_s,
        refusals=refusals,
        fault=fault,
        pieces=len(stamps),
    )


def _fail(fault: str, started_s: float, refusals: list[str]) -> Turn:
    return Turn(ended_s=time.perf_counter() - started_s, refusals=tuple(refusals), fault=fault)


def _name(seed: int, index: int) -> dict[str, str]:
    """The headers that make the first stream a parent and the others its children."""
    parent = f"bench-{seed}"
    if index == 0:
        return {"X-Homebase-Session": parent}
    return {"X-Homebase-Session": f"{parent}-{index}", "X-Homebase-Parent-Session": parent}


def _find_wait(response: httpx.Response) -> float | None:
    """How long a refusal asks to wait; None for what waiting does not cure."""
    try:
        return min(LONGEST_WAIT_S, max(0.05, float(response.headers["Retry-After"])))
    except (KeyError, ValueError):
        return None


def _read(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _error(document: Mapping[str, Any]) -> Mapping[str, Any]:
    error = document.get("error")
    return error if isinstance(error, dict) else {}


def _sentence(document: Mapping[str, Any], status: int) -> str:
    return str(_error(document).get("message") or f"answered with status {status}")
