"""The engine: the one thread that touches MLX, its inbox, and its life from loading to its end.

It knows no text, JSON or HTTP: token ids in, token ids out. It never waits for whoever reads its events.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

import mlx.core as mx
import msgspec

from server.engine.memory import EngineMemory, set_wired_limit
from server.engine.request import EngineRequest
from server.engine.step import StepRunner, describe_fault
from server.errors import EngineDead, ModelError
from server.events import EngineDied, EngineEvent, SequenceEnded
from server.models.cache import ModelFacts, ServedModel
from server.models.scheduling import OneCore
from server.policy import EnginePolicy

WRITE_WAIT_S = 3.0
"""What the engine waits at its end for the prefix cache's files."""

IDLE_WAKE_S = 1.0
"""Longest sleep without work: how soon a changed policy takes effect then, and how often memory is sampled. Costs
nothing that can be measured."""

log = logging.getLogger(__name__)


class _Cancel(msgspec.Struct, frozen=True):
    request_id: str


class _Stop(msgspec.Struct, frozen=True):
    pass


_Message = EngineRequest | _Cancel | _Stop


class Engine:
    """Runs requests on one model. `submit`, `cancel` and `stop` may be called from any thread.

    `deliver` is called on the engine thread, once per step, with everything the step did; it must not block. A step
    boundary that ends sequences without a step (a cancel) delivers that by itself, so that nobody waits for a step.
    """

    def __init__(
        self,
        build_model: Callable[[], ServedModel],
        deliver: Callable[[tuple[EngineEvent, ...]], None],
        read_policy: Callable[[], EnginePolicy],
    ) -> None:
        self._build_model = build_model
        self._deliver = deliver
        self._read_policy = read_policy
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._loaded: Future[ModelFacts] = Future()
        self._lock = threading.Lock()
        self._closed: str | None = None  # why nothing more is taken; guarded by the lock
        self._error: str | None = None
        self._step_began_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="homebase-engine", daemon=True)

    @property
    def alive(self) -> bool:
        """True from the start of the thread to its end, while the model loads too."""
        return self._thread.is_alive() and self._error is None

    @property
    def error(self) -> str | None:
        """The fault that ended the engine, in a sentence; None while it lives or when it was stopped."""
        return self._error

    @property
    def step_began_s(self) -> float | None:
        """`time.monotonic()` of the start of the step that runs now; None between steps. Tells a stall."""
        return self._step_began_s

    def start(self) -> Future[ModelFacts]:
        """Start the thread and load the model on it; the future has what was loaded, or why it was not."""
        self._loaded.set_running_or_notify_cancel()  # whoever gives up waiting for it does not cancel the load
        self._thread.start()
        return self._loaded

    def submit(self, request: EngineRequest) -> None:
        """Hand over a request; it starts at the next step boundary. Raises EngineDead."""
        with self._lock:
            if self._closed is not None:
                raise EngineDead(self._closed)
            self._inbox.put(request)

    def cancel(self, request_id: str) -> None:
        """End a sequence at the next step boundary; an id that is not here is fine."""
        if self._closed is None:  # else everything has ended or is about to
            self._inbox.put(_Cancel(request_id))

    def stop(self, timeout_s: float) -> bool:
        """End every sequence as cancelled and the thread with them; False when it is still busy after the time."""
        with self._lock:
            if self._closed is None:
                self._closed = "The engine has been stopped."
                self._inbox.put(_Stop())
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._live()
        except Exception as error:
            self._die(error)
        finally:
            self._step_began_s = None
            mx.clear_streams()  # without it the process aborts at exit (Linux, MLX 0.32.4)

    def _live(self) -> None:
        core = OneCore()
        model = self._load()
        if model is not None:
            self._serve(StepRunner(model), core)

    def _load(self) -> ServedModel | None:
        try:
            model = self._build_model()
            facts = model.facts
        except Exception as error:
            self._die(error)
            self._loaded.set_exception(error)
            return None
        set_wired_limit(self._read_policy().wired_limit_gib)
        gc.collect()
        gc.freeze()  # or a full collection over a loaded model stops every thread for 200 ms
        self._loaded.set_result(facts)
        return model

    def _serve(self, runner: StepRunner, core: OneCore) -> None:
        memory = EngineMemory()
        self._emit(memory.sample(time.monotonic()))
        stopping = False
        while not stopping:
            changes: list[EngineEvent] = []
            for message in self._messages(wait=runner.idle):
                match message:
                    case EngineRequest():
                        changes.extend(runner.add(message))
                    case _Cancel():
                        changes.extend(runner.cancel(message.request_id))
                    case _Stop():
                        changes.extend(runner.cancel_all())
                        stopping = True
            if runner.idle:
                changes.extend(self._follow(runner, memory))
            self._emit((*changes, *_sample(memory, runner)) if changes or runner.idle else ())
            if any(isinstance(change, SequenceEnded) for change in changes):
                memory.trim(has_freed=True)  # a cancelled context may be gigabytes, and no step may follow
            if not runner.idle:
                core.settle()
                self._step(runner, memory)
        runner.close(WRITE_WAIT_S)

    def _messages(self, *, wait: bool) -> Iterator[_Message]:
        """What is in the inbox now; with `wait`, sleeps until there is something or memory is due to be sampled."""
        if wait:
            with suppress(Empty):
                yield self._inbox.get(timeout=IDLE_WAKE_S)
        while not self._inbox.empty():  # this thread is the only reader
            yield self._inbox.get_nowait()

    def _follow(self, runner: StepRunner, memory: EngineMemory) -> tuple[EngineEvent, ...]:
        """While there is no step to do it: what the policy of now means for memory and for what is kept."""
        policy = self._read_policy()
        memory.follow(runner.find_budget(policy))
        events = runner.follow(policy)
        memory.trim(has_freed=bool(events))
        return events

    def _step(self, runner: StepRunner, memory: EngineMemory) -> None:
        self._step_began_s = time.monotonic()
        policy = self._read_policy()
        memory.follow(runner.find_budget(policy))
        events = runner.run_step(policy)
        self._step_began_s = None
        # Before it is told: what a step has left over is no memory in use.
        memory.trim(has_freed=any(isinstance(event, SequenceEnded) for event in events))
        self._emit((*events, *_sample(memory, runner)))

    def _emit(self, events: tuple[EngineEvent, ...]) -> None:
        if events:
            self._deliver(events)

    def _die(self, error: Exception) -> None:
        """Remember the fault, take nothing more, and tell everyone, in this order."""
        loading = not self._loaded.done()
        if isinstance(error, ModelError):
            reason = error.message
            log.error("%s", reason)
        else:
            log.error("the engine died %s", "while loading" if loading else "at work", exc_info=error)
            reason = (
                f"The engine died of a fault{' while loading the model' if loading else ''}: {describe_fault(error)}."
            )
        with self._lock:
            self._error = self._closed = reason
        try:
            self._deliver((EngineDied(reason),))
        except Exception:
            log.exception("nobody could be told that the engine died")


def _sample(memory: EngineMemory, runner: StepRunner) -> tuple[EngineEvent, ...]:
    """What is measured now and then: memory, and with it what steps cost. Nothing when that was told just now."""
    sampled = memory.sample(time.monotonic())
    return (*sampled, runner.cost) if sampled else ()
