"""Load for OpenAI-compatible chat servers: streams at once, and what their clients saw.

Knows nothing of any server. Every prompt is distinct, so that no prefix cache helps by accident. Tokens are counted
from the server's usage block; the decode rate is (tokens - 1) / (last content chunk - first content chunk).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from statistics import median
from typing import Any

import httpx
import msgspec

WORDS = (
    "amber barrel canyon delta engine feather granite hollow indigo juniper kettle lantern mirror nickel oyster pebble "
    "quartz ribbon saddle timber umbrella velvet walnut yonder zephyr"
)


class StreamResult(msgspec.Struct, frozen=True):
    """One stream as its client saw it."""

    status: int | None
    tokens: int = 0
    prompt_tokens: int = 0
    ttft_s: float | None = None
    decode_tps: float | None = None
    gaps_s: tuple[float, ...] = ()
    """Seconds between content chunks."""
    error: str | None = None


class LoadResult(msgspec.Struct, frozen=True):
    """Streams that were started together."""

    streams: tuple[StreamResult, ...]
    wall_s: float

    @property
    def finished(self) -> list[StreamResult]:
        """Those that ran to their end."""
        return [stream for stream in self.streams if stream.status == 200 and stream.error is None]

    @property
    def refused(self) -> int:
        """How many were answered with something else than 200."""
        return sum(stream.status not in (200, None) for stream in self.streams)


def build_prompt(tokens: int, seed: int) -> str:
    """About `tokens` tokens of plain words, the same for the same seed."""
    draw, words = random.Random(seed), WORDS.split()
    text = " ".join(draw.choice(words) for _ in range(max(1, tokens // 2)))
    return f"# {seed}: {text}\nWrite a long Python module about this, with many functions."


async def run_load(
    base_url: str, model: str, *, streams: int, prompt_tokens: int, max_tokens: int, seed: int
) -> LoadResult:
    """Start `streams` greedy streaming completions at the same moment and read them to their ends."""
    started = time.perf_counter()
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        results = await asyncio.gather(
            *(
                _run_stream(client, base_url, _body(model, prompt_tokens, max_tokens, seed + index))
                for index in range(streams)
            )
        )
    return LoadResult(tuple(results), time.perf_counter() - started)


def percentile(values: list[float], share: float) -> float | None:
    """The value at a share 0..1 of the sorted values, None for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))] if ordered else None


def summarise(results: list[LoadResult]) -> dict[str, Any]:
    """Medians over rounds, gaps over all of them; times in milliseconds, rates in tokens per second."""
    done = [stream for result in results for stream in result.finished]
    rates = [stream.decode_tps for stream in done if stream.decode_tps]
    totals = [sum(stream.tokens for stream in result.finished) / result.wall_s for result in results]
    ttfts = [stream.ttft_s for stream in done if stream.ttft_s is not None]
    gaps = [gap for stream in done for gap in stream.gaps_s]
    return {
        "finished": len(done),
        "refused": sum(result.refused for result in results),
        "failed": sum(stream.error is not None for result in results for stream in result.streams),
        "ttft_ms": _ms(median(ttfts) if ttfts else None),
        "decode_tps": round(median(rates), 1) if rates else None,
        "total_tps": round(median(totals), 1),
        "gap_p95_ms": _ms(percentile(gaps, 0.95)),
        "prompt_tokens": max((stream.prompt_tokens for stream in done), default=0),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _body(model: str, prompt_tokens: int, max_tokens: int, seed: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": build_prompt(prompt_tokens, seed)}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _run_stream(client: httpx.AsyncClient, base_url: str, body: dict[str, Any]) -> StreamResult:
    started = time.perf_counter()
    try:
        async with client.stream("POST", f"{base_url}/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                return StreamResult(response.status_code)
            return await _read_stream(response, started)
    except httpx.HTTPError as error:
        return StreamResult(None, error=f"{type(error).__name__}: {error}")


async def _read_stream(response: httpx.Response, started: float) -> StreamResult:
    stamps: list[float] = []
    usage: dict[str, Any] = {}
    async for line in response.aiter_lines():
        if not line.startswith("data:") or line.endswith("[DONE]"):
            continue
        event = json.loads(line[5:])
        if "error" in event:
            return StreamResult(200, error=str(event["error"]))
        usage = event.get("usage") or usage
        if any((choice.get("delta") or {}).get("content") for choice in event.get("choices") or []):
            stamps.append(time.perf_counter())
    return _result(stamps, usage, started)


def _result(stamps: list[float], usage: dict[str, Any], started: float) -> StreamResult:
    tokens = usage.get("completion_tokens", len(stamps))
    span = stamps[-1] - stamps[0] if len(stamps) > 1 else 0.0
    return StreamResult(
        200,
        tokens=tokens,
        prompt_tokens=usage.get("prompt_tokens", 0),
        ttft_s=stamps[0] - started if stamps else None,
        decode_tps=(tokens - 1) / span if span else None,
        gaps_s=tuple(later - earlier for earlier, later in itertools.pairwise(stamps)),
    )
