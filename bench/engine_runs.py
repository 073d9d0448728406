"""Requests through the real engine, and what it said of them: no HTTP, no text.

Imports MLX only by way of the server, which puts a fast BLAS in its place first; so must whoever imports this.
"""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from server.engine.engine import Engine
from server.engine.request import EngineRequest, Sampling
from server.events import (
    EngineDied,
    EngineEvent,
    MemorySampled,
    PrefillAdvanced,
    SequenceEnded,
    StepDone,
    TokensEmitted,
)
from server.models.folder import resolve_model_folder
from server.models.loader import load_model
from server.policy import EnginePolicy
from server.text.tokenizer import TextCodec, load_text_codec

from load import build_prompt

GREEDY = Sampling(temperature=0.0)
DEADLINE_S = 600
"""No step, no event, nothing at all for so long: the run is given up."""


class Trace(msgspec.Struct):
    """What the engine told of one request."""

    submitted_s: float
    emitted: list[TokensEmitted] = []
    chunk_ends_s: list[float] = []
    """When each of its prefill chunks was over."""
    ended: SequenceEnded | None = None

    @property
    def token_ids(self) -> list[int]:
        """All tokens in order."""
        return [token for event in self.emitted for token in event.token_ids]

    @property
    def decode_tps(self) -> float:
        """Tokens after the first event's, by the time from that event to the last."""
        tokens = sum(len(event.token_ids) for event in self.emitted[1:])
        return tokens / (self.emitted[-1].at_s - self.emitted[0].at_s)

    @property
    def tokens_per_step(self) -> float:
        """Of the steps after the first event."""
        return sum(len(event.token_ids) for event in self.emitted[1:]) / len(self.emitted[1:])

    @property
    def acceptance(self) -> float | None:
        """Accepted of all drafted tokens; None when none were."""
        drafted = sum(event.drafted_tokens for event in self.emitted)
        return sum(event.accepted_tokens for event in self.emitted) / drafted if drafted else None

    @property
    def mean_depth(self) -> float:
        """Drafts per step."""
        return sum(event.drafted_tokens for event in self.emitted[1:]) / len(self.emitted[1:])

    @property
    def prefill_s(self) -> float:
        """From the submission to the end of the last prefill chunk."""
        return self.chunk_ends_s[-1] - self.submitted_s

    def gaps_s(self, start_s: float, end_s: float) -> list[float]:
        """Seconds between its events, of those that overlap a time."""
        stamps = [event.at_s for event in self.emitted]
        pairs = itertools.pairwise(stamps)
        return [later - earlier for earlier, later in pairs if later > start_s and earlier < end_s]


def build_policy(**settings: Any) -> EnginePolicy:
    """`[engine]` with these settings, and no prefix cache: what is measured again would not be computed again."""
    return msgspec.convert({"prefix_cache_gib": 0.0, **settings}, EnginePolicy)


class EngineBench:
    """An engine on one checkpoint whose policy may be changed between runs."""

    def __init__(self, path: str) -> None:
        self.policy = build_policy()
        self.traces: dict[str, Trace] = {}
        self.codec: TextCodec = load_text_codec(Path(resolve_model_folder(path)))
        self._events: queue.SimpleQueue[tuple[EngineEvent, ...]] = queue.SimpleQueue()
        self._engine = Engine(lambda: load_model(path, "auto"), self._events.put, lambda: self.policy)
        self.facts = self._engine.start().result()
        self._count = 0

    def stop(self) -> None:
        """End the engine's thread."""
        self._engine.stop(30)

    def build_prompt(self, tokens: int, seed: int) -> tuple[int, ...]:
        """Just so many tokens of a chat with plain words in it."""
        messages = [{"role": "user", "content": build_prompt(tokens, seed)}]
        ids = self.codec.encode_chat(messages).token_ids
        while len(ids) < tokens:
            ids += ids
        return ids[:tokens]

    def submit(
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop_ids: frozenset[int] = frozenset(),
    ) -> Trace:
        """Hand a request over; without stop ids it runs to its full length."""
        self._count += 1
        request_id = f"request-{self._count}"
        self.traces[request_id] = Trace(time.monotonic())
        self._engine.submit(EngineRequest(request_id, prompt, max_tokens, sampling, stop_ids))
        return self.traces[request_id]

    def collect(self, is_done: Callable[[], bool]) -> list[StepDone]:
        """Take the engine's events in until that holds; the steps that ran."""
        steps: list[StepDone] = []
        last_s = time.monotonic()
        while not is_done():
            events = self._events.get(timeout=DEADLINE_S)
            alive = any(not isinstance(event, MemorySampled) for event in events)
            last_s = time.monotonic() if alive else last_s
            if time.monotonic() - last_s > DEADLINE_S:
                raise TimeoutError("the engine does nothing")
            steps += self._take(events)
        return steps

    def run(self, *traces: Trace) -> list[StepDone]:
        """Let submitted requests run to their ends; the steps that ran. One that fails raises."""
        steps = self.collect(lambda: all(trace.ended for trace in traces))
        for trace in traces:
            if trace.ended and trace.ended.outcome == "failed":
                raise RuntimeError(trace.ended.error)
        return steps

    def cancel(self, trace: Trace) -> None:
        """End a request and wait for it."""
        self._engine.cancel(next(name for name, each in self.traces.items() if each is trace))
        self.collect(lambda: trace.ended is not None)

    def _take(self, events: tuple[EngineEvent, ...]) -> list[StepDone]:
        steps = [event for event in events if isinstance(event, StepDone)]
        for event in events:
            match event:
                case TokensEmitted():
                    self.traces[event.request_id].emitted.append(event)
                case PrefillAdvanced():
                    self.traces[event.request_id].chunk_ends_s.append(steps[0].at_s)
                case SequenceEnded():
                    self.traces[event.request_id].ended = event
                case EngineDied():
                    raise RuntimeError(event.reason)
                case _:
                    pass
        return steps
