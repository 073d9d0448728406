"""A small exact model on MLX and a rig around the engine, for every engine test."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import pytest

from server.engine.engine import Engine
from server.engine.request import EngineRequest, Sampling
from server.events import (
    EngineEvent,
    MemorySampled,
    PrefillAdvanced,
    SequenceEnded,
    StepDone,
    TokensEmitted,
)
from server.models.cache import ModelFacts, Segment
from server.policy import EnginePolicy

VOCAB = 61
CONTEXT_LIMIT = 4096


class HashState:
    """Remembers every token as an array, and a fat array beside it, so that a leak would show in MLX's account."""

    def __init__(self, ballast_floats: int) -> None:
        self.history = mx.zeros((0,), mx.uint32)
        self.ids: list[int] = []
        self.ballast = mx.ones((ballast_floats,))
        mx.eval(self.ballast)

    @property
    def offset(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return self.history.nbytes + self.ballast.nbytes

    def checkpoint(self) -> object:
        return (self.history, list(self.ids))

    def rollback(self, checkpoint: object) -> None:
        assert isinstance(checkpoint, tuple)
        self.history, self.ids = checkpoint

    def arrays(self) -> list[mx.array]:
        return [self.history, self.ballast]


class HashModel:
    """Logits are a hash of the whole history: one token of another sequence in the state changes all that follows.

    `before` sees a sequence's whole history when its tokens are appended: it may wait or raise. `spoil` may put one
    value in place of all logits. `forwards` records (first token of the sequence, tokens in this forward).
    """

    def __init__(self) -> None:
        self.facts = ModelFacts("hash", "", "hash", VOCAB, CONTEXT_LIMIT, "float32", "", 0, 0, False, False)
        self.before: Callable[[list[int]], None] = lambda ids: None
        self.spoil: Callable[[list[int]], float | None] = lambda ids: None
        self.on_build_state: Callable[[], None] = lambda: None
        self.ballast_floats = 16
        self.forwards: list[tuple[int, int]] = []
        self.states_built = 0
        keys = mx.arange(1, CONTEXT_LIMIT + 1, dtype=mx.uint32) * mx.array(2654435761, mx.uint32)
        self._weights = keys | mx.array(1, mx.uint32)  # (S,) odd, so that every position counts
        self._spread = mx.arange(1, VOCAB + 1, dtype=mx.uint32) * mx.array(40503, mx.uint32)  # (V,)

    def build_state(self) -> HashState:
        self.on_build_state()
        self.states_built += 1
        return HashState(self.ballast_floats)

    def forward(self, segments: Sequence[Segment]) -> mx.array:
        return mx.stack([self._forward_one(segment) for segment in segments])

    def _forward_one(self, segment: Segment) -> mx.array:
        state = segment.state
        assert isinstance(state, HashState)
        state.ids.extend(segment.token_ids)
        self.forwards.append((state.ids[0], len(segment.token_ids)))
        self.before(state.ids)
        state.history = mx.concatenate([state.history, mx.array(segment.token_ids, mx.uint32)])  # (S,)
        digest = ((state.history + 1) * self._weights[: state.offset]).sum()  # wraps at 2**32, on purpose
        hashed = ((digest ^ (digest >> 7)) * self._spread) >> 9  # (V,)
        logits = (hashed % 1000).astype(mx.float32) / 100
        spoiled = self.spoil(state.ids)
        return logits if spoiled is None else mx.full((VOCAB,), spoiled)


class Rig:
    """An engine on a HashModel, everything it delivered, and a policy that can be edited while it runs."""

    def __init__(self) -> None:
        self.policy = EnginePolicy(prefill_chunk_tokens=8)
        self.prepare: Callable[[HashModel], None] = lambda model: None
        self.on_deliver: Callable[[tuple[EngineEvent, ...]], None] = lambda events: None
        self.deliveries: list[tuple[EngineEvent, ...]] = []
        self.delivering_threads: set[str] = set()
        self._changed = threading.Condition()
        self.engine = Engine(self._build, self._deliver, lambda: self.policy)

    def _build(self) -> HashModel:
        self.model = HashModel()
        self.prepare(self.model)
        return self.model

    def _deliver(self, events: tuple[EngineEvent, ...]) -> None:
        self.on_deliver(events)
        with self._changed:
            self.delivering_threads.add(threading.current_thread().name)
            self.deliveries.append(events)
            self._changed.notify_all()

    def start(self) -> ModelFacts:
        return self.engine.start().result(20)

    def wait(self, claim: Callable[[], bool], seconds: float = 20) -> None:
        with self._changed:
            assert self._changed.wait_for(claim, seconds), f"not within {seconds} s; last: {self.deliveries[-3:]}"

    def events(self, request_id: str | None = None) -> list[EngineEvent]:
        flat = [event for delivery in list(self.deliveries) for event in delivery]
        return flat if request_id is None else [e for e in flat if getattr(e, "request_id", None) == request_id]

    def tokens(self, request_id: str) -> list[int]:
        emitted = (event for event in self.events(request_id) if isinstance(event, TokensEmitted))
        return [token for event in emitted for token in event.token_ids]

    def end(self, request_id: str) -> SequenceEnded | None:
        ends = [event for event in self.events(request_id) if isinstance(event, SequenceEnded)]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def outcome(self, request_id: str) -> str | None:
        end = self.end(request_id)
        return end.outcome if end else None

    def wait_end(self, *request_ids: str) -> None:
        self.wait(lambda: all(self.end(request_id) for request_id in request_ids))

    def run(self, *requests: EngineRequest) -> dict[str, list[int]]:
        """Submit all at once, wait for all; their tokens by id."""
        for request in requests:
            self.engine.submit(request)
        self.wait_end(*(request.id for request in requests))
        return {request.id: self.tokens(request.id) for request in requests}

    def steps(self) -> list[tuple[EngineEvent, ...]]:
        """Deliveries that report a step."""
        return [delivery for delivery in self.deliveries if any(isinstance(event, StepDone) for event in delivery)]

    def chunks(self, request_id: str) -> list[int]:
        return [e.chunk_tokens for e in self.events(request_id) if isinstance(e, PrefillAdvanced)]

    def wait_memory_sample(self) -> MemorySampled:
        """A sample taken after now. Waits for the engine's next one."""
        seen = len(self.deliveries)

        def newer() -> list[MemorySampled]:
            fresh = [event for delivery in self.deliveries[seen:] for event in delivery]
            return [event for event in fresh if isinstance(event, MemorySampled)]

        self.wait(lambda: bool(newer()))
        return newer()[-1]


@pytest.fixture
def rig() -> Iterator[Rig]:
    """An engine that is not started yet: what is submitted before `start` arrives in one step boundary."""
    rig = Rig()
    yield rig
    assert rig.engine.stop(20), "the engine did not stop"
    gc.unfreeze()


RequestMaker = Callable[..., EngineRequest]


@pytest.fixture
def ask() -> RequestMaker:
    """Builds a greedy request from an id and a prompt length, or from a prompt."""

    def build(
        request_id: str,
        prompt: int | tuple[int, ...] = 5,
        max_tokens: int = 6,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
    ) -> EngineRequest:
        if isinstance(prompt, int):
            start = sum(request_id.encode()) % VOCAB
            prompt = tuple((start + 7 * position) % VOCAB for position in range(prompt))
        return EngineRequest(request_id, prompt, max_tokens, sampling or Sampling(temperature=0), stop_ids)

    return build


class Gate:
    """Holds the engine inside the model until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def pass_through(self, ids: list[int]) -> None:
        self.reached.set()
        assert self._open.wait(20), "the gate was never opened"

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A closed gate; opened at the end of the test whatever happens."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def cpu_seconds() -> Callable[[float], float]:
    """Measures what the whole process burns while asleep for a time."""

    def measure(seconds: float) -> float:
        before = time.process_time()
        time.sleep(seconds)
        return time.process_time() - before

    return measure
