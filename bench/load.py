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
from collections.abc import Mapping
from statistics import median
from typing import Any

import httpx
import msgspec

SILENCE_S = 150
"""Longest wait for the next byte: an 8,000-token prompt takes the slowest server 30 s on quiet cores. One that has
broken down must not hold up the run for ever."""

WORDS = (
    "amber barrel canyon delta engine feather granite hollow indigo juniper kettle lantern mirror nickel oyster pebble "
    "quartz ribbon saddle timber umbrella velvet walnut yonder zephyr"
)

TEMPLATE_TOKENS, TOKENS_PER_WORD = 45, 3.44
"""Of `build_prompt`, by nano's tokenizer: words of two tokens, as others have it, are longer there."""


class StreamResult(msgspec.Struct, frozen=True):
    """One stream as its client saw it."""

    status: int | None
    tokens: int = 0
    prompt_tokens: int = 0
    ttft_s: float | None = None
    decode_tps: float | None = None
    stamps_s: tuple[float, ...] = ()
    """When each content chunk came; of one clock for all streams of a process."""
    chunk_chars: tuple[int, ...] = ()
    text: str = ""
    error: str | None = None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between content chunks."""
        return [later - earlier for earlier, later in itertools.pairwise(self.stamps_s)]

    def count_tokens(self, start_s: float, end_s: float) -> float:
        """About how many tokens came in a time: its tokens, by the share of its characters."""
        pairs = zip(self.stamps_s, self.chunk_chars, strict=True)
        inside = sum(chars for stamp, chars in pairs if start_s < stamp <= end_s)
        return self.tokens * inside / sum(self.chunk_chars)


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

    @property
    def decode_tps(self) -> float | None:
        """Median rate of the streams that finished."""
        rates = [stream.decode_tps for stream in self.finished if stream.decode_tps]
        return median(rates) if rates else None

    @property
    def together_tps(self) -> float | None:
        """Tokens per second of all while all decode; None when one failed, or when they never did so together."""
        streams = self.finished
        if len(streams) < len(self.streams) or not all(stream.stamps_s for stream in streams):
            return None
        start_s = max(stream.stamps_s[0] for stream in streams)
        end_s = min(stream.stamps_s[-1] for stream in streams)
        if end_s <= start_s:
            return None
        return sum(stream.count_tokens(start_s, end_s) for stream in streams) / (end_s - start_s)


def build_prompt(tokens: int, seed: int) -> str:
    """About `tokens` tokens of plain words, the same for the same seed."""
    draw, words = random.Random(seed), WORDS.split()
    text = " ".join(draw.choice(words) for _ in range(max(1, tokens // 2)))
    return f"# {seed}: {text}\nWrite a long Python module about this, with many functions."


def ask_for(tokens: int) -> int:
    """What to ask of `build_prompt`, which counts two tokens a word, for about so many of nano's."""
    return round(2 * (tokens - TEMPLATE_TOKENS) / TOKENS_PER_WORD)


async def run_load(
    base_url: str,
    model: str,
    *,
    streams: int,
    prompt_tokens: int,
    max_tokens: int,
    seed: int,
    asked: Mapping[str, Any] | None = None,
) -> LoadResult:
    """Start `streams` greedy streaming completions at the same moment and read them to their ends.

    `asked` is put into every body as it is.
    """
    started = time.perf_counter()
    async with httpx.AsyncClient(timeout=SILENCE_S, trust_env=False) as client:
        results = await asyncio.gather(
            *(
                _run_stream(client, base_url, _body(model, prompt_tokens, max_tokens, seed + index) | dict(asked or {}))
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
        "errors": sorted({stream.error for result in results for stream in result.streams if stream.error}),
        "ttft_ms": _ms(median(ttfts) if ttfts else None),
        "decode_tps": round(median(rates), 1) if rates else None,
        "together_tps": _middle([result.together_tps for result in results]),
        "total_tps": round(median(totals), 1),
        "gap_p95_ms": _ms(percentile(gaps, 0.95)),
        "prompt_tokens": max((stream.prompt_tokens for stream in done), default=0),
    }


def _middle(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(median(known), 1) if known else None


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
    chunks: list[tuple[float, str]] = []
    usage: dict[str, Any] = {}
    finished = False
    async for line in response.aiter_lines():
        if not line.startswith("data:") or line.endswith("[DONE]"):
            continue
        event = json.loads(line[5:])
        if "error" in event:
            return StreamResult(200, error=str(event["error"]))
        usage = event.get("usage") or usage
        choices = event.get("choices") or []
        finished = finished or any(choice.get("finish_reason") for choice in choices)
        text = "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)
        if text:
            chunks.append((time.perf_counter(), text))
    return _result(chunks, usage, started, finished)


def _result(chunks: list[tuple[float, str]], usage: dict[str, Any], started: float, finished: bool) -> StreamResult:
    stamps = tuple(stamp for stamp, _ in chunks)
    tokens = usage.get("completion_tokens", len(stamps))
    span = stamps[-1] - stamps[0] if len(stamps) > 1 else 0.0
    return StreamResult(
        200,
        tokens=tokens,
        prompt_tokens=usage.get("prompt_tokens", 0),
        ttft_s=stamps[0] - started if stamps else None,
        decode_tps=(tokens - 1) / span if span else None,
        stamps_s=stamps,
        chunk_chars=tuple(len(text) for _, text in chunks),
        text="".join(text for _, text in chunks),
        error=None if finished else "the stream ended without a finish_reason",
    )
