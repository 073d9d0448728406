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
from server.engine.step import StepRunner
from server.events import (
    DraftingChanged,
    EngineEvent,
    MemorySampled,
    PrefillAdvanced,
    SequenceEnded,
    StepDone,
    TokensEmitted,
)
from server.models.cache import DraftForward, DraftSegment, Forward, ModelFacts, Segment
from server.policy import EnginePolicy

VOCAB = 61
CONTEXT_LIMIT = 4096


class HashState:
    """Remembers every token as an array, and a fat array beside it, so that a leak would show in MLX's account."""

    def __init__(self, ballast_floats: int) -> None:
        self.history = mx.zeros((0,), mx.uint32)
        self.ids: list[int] = []
        self.forwards = 0
        self.newest_rows = "none"
        self.ballast = mx.ones((ballast_floats,))
        mx.eval(self.ballast)

    @property
    def offset(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return self.history.nbytes + self.ballast.nbytes

    def checkpoint(self) -> object:
        return (self.history, len(self.ids), self.forwards)

    def rollback(self, checkpoint: object, keep_tokens: int = 0) -> None:
        assert isinstance(checkpoint, tuple)
        history, offset, forwards = checkpoint
        if keep_tokens:
            assert self.forwards == forwards + 1, "tokens can be kept of one forward only"
            assert self.newest_rows == "all" or offset + keep_tokens == self.offset
            self.history = self.history[: offset + keep_tokens]
        else:
            self.history = history
        assert offset + keep_tokens <= self.offset
        del self.ids[offset + keep_tokens :]

    def fork(self) -> HashState:
        fork = HashState(self.ballast.size)
        fork.history, fork.ids, fork.forwards = self.history, [*self.ids], self.forwards
        return fork

    def arrays(self) -> list[mx.array]:
        return [self.history, self.ballast]


KEYS = mx.arange(1, CONTEXT_LIMIT + 1, dtype=mx.uint32) * mx.array(2654435761, mx.uint32)
WEIGHTS = KEYS | mx.array(1, mx.uint32)  # (S,) odd, so that every position counts
SPREAD = mx.arange(1, VOCAB + 1, dtype=mx.uint32) * mx.array(40503, mx.uint32)  # (V,)
mx.eval(WEIGHTS, SPREAD)  # here: other threads may not evaluate what this one began


def digest_logits(digests: mx.array) -> mx.array:
    """(T,) digests of whole histories to (T, V) logits."""
    hashed = ((digests ^ (digests >> 7))[:, None] * SPREAD) >> 9
    return (hashed % 1000).astype(mx.float32) / 100


def pack_stream(digests: mx.array, first: int) -> mx.array:
    """(T,) digests and the position of the first as a stream (T, 1, 3), exact in float32."""
    positions = mx.arange(first, first + digests.shape[0], dtype=mx.uint32)
    return mx.stack([digests >> 16, digests & 0xFFFF, positions], axis=-1).astype(mx.float32)[:, None, :]


class HashHead:
    """Knows what HashModel knows, and guesses wrong for one history in `wrong_one_in` (0: never, 1: always).

    Every row's position is checked against the length of its state, so a row too many, too few or out of turn is a
    fault. `before` may raise. `calls` records the rows of each segment of each call.
    """

    def __init__(self, wrong_one_in: int = 3) -> None:
        self.wrong_one_in = wrong_one_in
        self.before: Callable[[list[int]], None] = lambda ids: None
        self.calls: list[list[int]] = []
        self.states: list[HashState] = []

    def build_state(self) -> HashState:
        self.states.append(HashState(16))
        return self.states[-1]

    def forward(self, segments: Sequence[DraftSegment]) -> DraftForward:
        self.calls.append([segment.streams.shape[0] for segment in segments])
        passed = [self._forward_one(segment) for segment in segments]
        return DraftForward(tuple(logits for logits, _ in passed), tuple(stream for _, stream in passed))

    def _forward_one(self, segment: DraftSegment) -> tuple[mx.array | None, mx.array]:
        state, stream = segment.state, segment.streams.astype(mx.uint32)
        assert isinstance(state, HashState)
        tokens = mx.array(segment.token_ids, mx.uint32)  # (T,)
        assert stream.shape == (tokens.shape[0], 1, 3)
        first = state.offset
        assert stream[:, 0, 2].tolist() == list(range(first, first + tokens.shape[0])), "rows out of turn"
        state.forwards += 1
        state.ids.extend(tokens.tolist())  # type: ignore[arg-type]
        self.before(state.ids)
        state.history = mx.concatenate([state.history, tokens])
        digests = (stream[:, 0, 0] << 16) + stream[:, 0, 1]
        ahead = (digests + (tokens + 1) * WEIGHTS[first + 1 : first + 1 + tokens.shape[0]])[-1:]  # (1,)
        if not segment.wants_logits:
            return None, pack_stream(ahead, first + tokens.shape[0])
        logits = digest_logits(ahead)
        wrong = (ahead >> 11) % max(1, self.wrong_one_in) == 0
        if self.wrong_one_in:
            shifted = mx.concatenate([logits[:, 1:], logits[:, :1]], axis=-1)
            logits = mx.where(wrong[:, None], shifted, logits)
        return logits, pack_stream(ahead, first + tokens.shape[0])


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
        self.passes: list[list[int]] = []
        """Lengths of the segments of each forward."""
        self.states_built = 0
        self.mtp: HashHead | None = None

    def build_state(self) -> HashState:
        self.on_build_state()
        self.states_built += 1
        return HashState(self.ballast_floats)

    def forward(self, segments: Sequence[Segment]) -> Forward:
        self.passes.append([len(segment.token_ids) for segment in segments])
        passed = [self._forward_one(segment) for segment in segments]
        streams = tuple(stream for _, stream in passed) if self.mtp else ()
        return Forward(tuple(logits for logits, _ in passed), streams)

    def _forward_one(self, segment: Segment) -> tuple[mx.array | None, mx.array]:
        state, first = segment.state, segment.state.offset
        assert isinstance(state, HashState)
        state.forwards, state.newest_rows = state.forwards + 1, segment.rows
        spoiled: list[float | None] = []
        for token in segment.token_ids:
            state.ids.append(token)
            spoiled.append(self.spoil(state.ids))
        self.forwards.append((state.ids[0], len(segment.token_ids)))
        self.before(state.ids)
        state.history = mx.concatenate([state.history, mx.array(segment.token_ids, mx.uint32)])  # (S,)
        terms = (state.history + 1) * WEIGHTS[: state.offset]
        digests = mx.cumsum(terms)[first:]  # (T,) wraps at 2**32, on purpose
        stream = pack_stream(digests, first)
        logits = digest_logits(digests)
        logits = mx.stack(
            [row if value is None else mx.full((VOCAB,), value) for row, value in zip(logits, spoiled, strict=True)]
        )
        return {"none": None, "last": logits[-1:], "all": logits}[segment.rows], stream


class Rig:
    """An engine on a HashModel, everything it delivered, and a policy that can be edited while it runs."""

    def __init__(self) -> None:
        self.policy = EnginePolicy(prefill_chunk_tokens=8)
        self.prepare: Callable[[HashModel], None] = lambda model: None
        self.model_maker: Callable[[], HashModel] = HashModel
        self.on_deliver: Callable[[tuple[EngineEvent, ...]], None] = lambda events: None
        self.deliveries: list[tuple[EngineEvent, ...]] = []
        self.delivering_threads: set[str] = set()
        self._changed = threading.Condition()
        self.engine = Engine(self._build, self._deliver, lambda: self.policy)

    def _build(self) -> HashModel:
        self.model = self.model_maker()
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


MtpModelMaker = Callable[[int | None], HashModel]


@pytest.fixture
def mtp_model() -> MtpModelMaker:
    """Builds a model with a head that guesses wrong for one history in so many; without a head for None."""

    def build(wrong_one_in: int | None) -> HashModel:
        model = HashModel()
        model.mtp = None if wrong_one_in is None else HashHead(wrong_one_in)
        return model

    return build


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
        top_logprobs: int | None = None,
    ) -> EngineRequest:
        if isinstance(prompt, int):
            start = sum(request_id.encode()) % VOCAB
            prompt = tuple((start + 7 * position) % VOCAB for position in range(prompt))
        sampling = sampling or Sampling(temperature=0)
        return EngineRequest(request_id, prompt, max_tokens, sampling, stop_ids, top_logprobs=top_logprobs)

    return build


class Table:
    """Steps run by hand: what a request got, step by step."""

    def __init__(self, model: HashModel, policy: EnginePolicy) -> None:
        self.model, self.policy = model, policy
        self.runner = StepRunner(model)
        self.events: list[EngineEvent] = []

    def add(self, request: EngineRequest) -> None:
        self.events.extend(self.runner.add(request))

    def step(self) -> tuple[EngineEvent, ...]:
        events = self.runner.run_step(self.policy)
        self.events.extend(events)
        return events

    def finish(self) -> None:
        while not self.runner.idle:
            self.step()

    def run(self, *requests: EngineRequest) -> dict[str, list[int]]:
        """Add all at once and run to the end of the last; their tokens by id."""
        for request in requests:
            self.add(request)
        self.finish()
        return {request.id: self.tokens(request.id) for request in requests}

    def tokens(self, request_id: str) -> list[int]:
        emitted = [e for e in self.events if isinstance(e, TokensEmitted) and e.request_id == request_id]
        return [token for event in emitted for token in event.token_ids]

    def emissions(self, request_id: str) -> list[TokensEmitted]:
        return [e for e in self.events if isinstance(e, TokensEmitted) and e.request_id == request_id]

    def end(self, request_id: str) -> SequenceEnded:
        (end,) = [e for e in self.events if isinstance(e, SequenceEnded) and e.request_id == request_id]
        return end

    def states(self, request_id: str) -> list[str]:
        return [e.state for e in self.events if isinstance(e, DraftingChanged) and e.request_id == request_id]


TableMaker = Callable[..., "Table"]


@pytest.fixture
def table(mtp_model: MtpModelMaker) -> TableMaker:
    """Builds steps run by hand on a model with a head; see `mtp_model`."""

    def build(mtp: object = "auto", wrong_one_in: int | None = 3, chunk: int = 8) -> Table:
        return Table(mtp_model(wrong_one_in), EnginePolicy(prefill_chunk_tokens=chunk, mtp=mtp))  # type: ignore[arg-type]

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
