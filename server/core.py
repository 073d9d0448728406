"""Admission, engine, model and telemetry put together: everything that lives on the server loop between HTTP and MLX.

Libraries that take seconds to import (mlx-lm, transformers) are imported when the model is loaded, on a thread: the
port answers, and the screen is up, before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quart import Quart

from server.access import answers_strangers
from server.admission.cascade import Cascade, list_elsewhere
from server.admission.lineage import Lineage
from server.admission.place import Place
from server.admission.slots import Admission
from server.admission.wording import build_loading_refusal, explain_shortage
from server.api.app import build_app
from server.api.operator.controls import Controls
from server.api.services import Services
from server.engine.dispatch import Dispatcher
from server.errors import EngineStalled, ParentGone, ServerEnding, StartupError, StreamStopped
from server.events import EngineDied, EngineEvent, EventRing
from server.forecast.arrivals import read_arrivals
from server.forecast.forecaster import Forecaster
from server.forecast.what_if import Situation, WhatIf, forecast_what_if
from server.history.recording import Recording
from server.machine import read_machine_bytes, read_resident_bytes
from server.metrics.observers import Observers
from server.metrics.tally import Tally
from server.model_state import ModelState, describe_fetch, explain_load_fault
from server.models.fetch import fetch_model
from server.models.folder import EMBEDDED, HubId, find_drafter, find_model, model_name, read_config
from server.policy import Policy
from server.policy_store import PolicyStore
from server.snapshot import FetchView, ModelView, PolicyView, ServerState, Snapshot, StreamView
from server.telemetry import ServerFacts, Telemetry
from server.upstreams.upstreams import Upstreams

if TYPE_CHECKING:
    from server.engine.engine import Engine
    from server.models.cache import ModelFacts
    from server.text.tokenizer import TextCodec

log = logging.getLogger(__name__)

GC_THRESHOLD = (20_000, 20, 20)
"""New objects before a collection, and so on: with Python's 700 every third token waits for one that finds nothing."""

REPLAYED_S = 3600.0
"""How far back a what-if replays who came."""

STOPPED = "This stream was stopped at the server before it was complete."
STOPPED_WAITING = "This request was stopped at the server while it waited for a place."


class Core:
    """What serves, without its socket. Lives on the server loop; made before that on the main thread.

    Raises ModelNotFound or CheckpointInvalid when the policy's model folder cannot be one; a model that has to be
    fetched is judged when it is there.
    """

    def __init__(self, store: PolicyStore, ring: EventRing, show: Callable[[Snapshot], object]) -> None:
        policy = store.state.policy
        self.host, self.port = policy.server.host, policy.server.port
        self._asked = policy.model
        self._place = find_model(policy.model.path) if policy.model.path else None
        if isinstance(self._place, Path):
            read_config(self._place)
        self._store, self._show, self._ring = store, show, ring
        self._telemetry = Telemetry(ring, on_change=self._note_stream)
        self._history = Recording(ring, lambda: store.state.policy.history)
        self._tally = Tally()
        self._observers = Observers(self._telemetry, self._tally, on_end=self._note_end)
        self._forecaster = Forecaster(lambda: self._store.state.policy.engine)
        self._stream_changed = asyncio.Event()
        self._upstreams = Upstreams(lambda: self._store.state.policy.upstreams)
        self._admission = Admission(
            self._list_admitted,
            read_memory=lambda: self._model.plan_memory(self._store.state.policy),
            read_policy=lambda: self._store.state.policy.policy,
            forecast=lambda asked, granted: self._forecaster.expect(
                asked.prompt_tokens,
                self._admission.expect_output(asked, granted),
                self._list_local(),
                self._admission.expect_left,
            ),
        )
        self._cascade = Cascade(
            self._list_places,
            self._end_with_parent,
            lambda: self._store.state.policy.policy.subagents.cancel_on_turn_cancel,
            lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call),
        )
        self._lineage = Lineage()
        self._model = ModelState(
            model_name(policy.model.path) if policy.model.path else "",
            str(self._place) if isinstance(self._place, Path) else policy.model.path,
            policy.model.path == EMBEDDED,
            ring.publish,
        )
        self._viewed_state, self._policy_view = store.state, store.view()
        self._engine: Engine | None = None
        self._dispatcher: Dispatcher | None = None
        self._closing: ServerState | None = None
        self._has_told_all = False
        self._version = version("homebase-console")
        self._machine_bytes = read_machine_bytes()

    def build_app(self) -> Quart:
        """The HTTP application over all this."""
        return build_app(
            Services(
                read_policy=lambda: self._store.state.policy,
                read_model=self._view_model,
                text=self._model.text,
                admission=self._admission,
                lineage=self._lineage,
                dispatcher=self._find_dispatcher,
                telemetry=self._observers,
                upstreams=self._upstreams,
                tally=self._tally,
                controls=Controls(
                    store=lambda: self._store,
                    ring=self._ring,
                    drain=self.drain,
                    resume=self.resume,
                    is_over=lambda: self._has_told_all,
                ),
                build_snapshot=self.build_snapshot,
                stop_stream=self.stop_stream,
                came=self._cascade.came,
                what_if=self.forecast,
            )
        )

    def start_history(self) -> None:
        """Remember what is over from now on."""
        self._history.start()

    async def load(self) -> None:
        """Load model and tokenizer; a failure is the model's state from then on, and the server stays up."""
        if self._place is None:
            log.info("no model is served here: [model] path is empty")
            return
        try:
            facts, codec, device = await self._load(self._place)
        except Exception as error:  # the engine's edge: whatever a checkpoint can do to the libraries that read it
            reason = explain_load_fault(error)
            self._model.fail(reason)
            log.error("the model is not served: %s", reason)
        else:
            self._model.ready(facts, codec, device)
            self._forecaster.model_loaded(facts)
            # What is here now stays: a full collection over it would stop every thread for 200 ms and more.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLD)
            log.info("serving %s (%s, %s)", facts.id, facts.architecture, facts.dtype)
            if shortage := explain_shortage(self._model.plan_memory(self._store.state.policy)):
                log.warning("every request will be refused: %s", shortage)
        self.refresh()

    def refresh(self) -> None:
        """Make a new snapshot and show it; while the engine is stalled, nobody is kept waiting for it."""
        self._admission.serve_line()  # the policy may be another, or there may be more memory
        snapshot = self.build_snapshot()
        self._show(snapshot)
        if snapshot.state == "stalled" and self._dispatcher is not None:
            # Keep-alive comments would hold its clients for ever: one of another server's waited twelve days.
            self._dispatcher.fail_open(self._stalled)
            self._admission.fail_line(self._stalled)

    def build_snapshot(self) -> Snapshot:
        """The state of everything, now."""
        model, limits = self._view_model(), self._store.state.policy.policy
        return self._telemetry.build_snapshot(
            ServerFacts(
                state=self._state(),
                host=self.host,
                port=self.port,
                version=self._version,
                in_flight=self._admission.in_flight,
                max_in_flight=limits.max_in_flight,
                peak_in_flight=self._admission.peak_in_flight,
                admitted_total=self._admission.admitted_total,
                policy=self._view_policy(),
                model=model,
                engine_alive=self._engine_error is None and self._closing != "stopped",
                engine_error=self._engine_error,
                resident_bytes=read_resident_bytes(),
                machine_bytes=self._machine_bytes,
                memory_budget_bytes=self._model.plan_memory(self._store.state.policy).budget_bytes,
                promised_bytes=self._admission.promised_bytes,
                answers_strangers=answers_strangers(self.host, self._store.state.policy.server),
                line=self._admission.line_places(),
                upstreams=self._upstreams.views(),
                memory_is_full=self._admission.lacks_memory(limits, model.effective_context_limit_tokens - 1),
                forecast=self._forecaster.show_next(self._list_local()),
            )
        )

    async def forecast(self, policy: Policy, situation: Situation) -> WhatIf:
        """What a policy would mean, and for the last hour's requests. Raises as `ModelState.text` does."""
        facts = self._model.read_facts()
        arrivals = read_arrivals(await asyncio.to_thread(self._history.read_since, time.time() - REPLAYED_S))
        return forecast_what_if(policy, situation, self._forecaster.know(policy.engine), facts, arrivals)

    def stop_stream(self, stream_id: str, by: str = "the operator") -> bool:
        """End one stream, or the wait of one, by whom is logged; False when it is already over."""
        if not self._stop(stream_id):
            return False
        log.info("stopped by %s", by, extra={"request_id": stream_id})
        return True

    def _stop(self, stream_id: str) -> bool:
        if self._admission.cancel_waiting(stream_id, StreamStopped(STOPPED_WAITING)):
            return True
        if self._dispatcher is not None and stream_id in self._dispatcher.open_ids:
            self._dispatcher.cancel(stream_id)
            return True
        return self._upstreams.stop(stream_id, StreamStopped(STOPPED))

    def _list_admitted(self) -> Sequence[StreamView]:
        """Streams that have a slot, or had."""
        return tuple(stream for stream in self._telemetry.streams() if stream.has_slot)

    def _list_places(self) -> Iterator[tuple[str, Place]]:
        """Id and place of all that works or waits for somebody."""
        yield from self._admission.places()
        yield from list_elsewhere(self._telemetry.streams())

    def _list_local(self) -> Sequence[StreamView]:
        """Streams of our own engine."""
        return tuple(stream for stream in self._telemetry.streams() if not stream.upstream)

    def drain(self, by: str) -> None:
        """Take nothing new until `resume`, by whom is logged; what is in flight goes on."""
        if not self._admission.draining:
            log.info("draining, asked by %s: nothing new is admitted", by)
        self._admission.drain()
        self.refresh()

    def resume(self, by: str) -> None:
        """Admit again, unless the server is about to end."""
        if self._closing is not None:
            return
        if self._admission.draining:
            log.info("draining no more, asked by %s: requests are admitted again", by)
        self._admission.resume()
        self.refresh()

    def begin_end(self) -> None:
        """Take nothing new, for the server is about to end."""
        self._closing = "draining"
        self._admission.drain()
        self.refresh()

    async def end_streams(self, timeout_s: float) -> None:
        """Tell every open stream that this is the end, without waiting for the engine, and wait until all have."""
        if self._dispatcher is not None:
            self._dispatcher.close(ServerEnding())
        self._upstreams.flights.close(ServerEnding())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._telemetry.open_streams:
                    self._stream_changed.clear()
                    await self._stream_changed.wait()
        self._has_told_all = True
        await self._upstreams.close()

    async def stop_engine(self, timeout_s: float) -> bool:
        """End the engine thread; False when a step, or the load, is still running after the time."""
        if self._engine is None:
            return True
        return await asyncio.to_thread(self._engine.stop, timeout_s)

    def close(self) -> None:
        """Everything has ended."""
        self._closing = "stopped"
        self._history.close()
        self.refresh()

    async def _find(self, place: Path | HubId) -> Path:
        """The folder of a model, which is fetched when it is not here."""
        if isinstance(place, Path):
            return place

        def report(progress: FetchView) -> None:
            if self._model.fetching(progress):
                log.info("%s: %s", place.repo, describe_fetch(progress))

        self._model.look()
        return await fetch_model(place, report)

    async def _load(self, place: Path | HubId) -> tuple[ModelFacts, TextCodec, str]:
        folder = await self._find(place)
        drafts_from = find_drafter(self._asked.draft_path)
        drafter = await self._find(drafts_from) if drafts_from is not None else None
        if isinstance(place, HubId) or isinstance(drafts_from, HubId):
            self._model.found(folder)
        engine_type, load_model, load_codec, describe_device = await asyncio.to_thread(_import_libraries)
        loop = asyncio.get_running_loop()

        def deliver(events: tuple[EngineEvent, ...]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(dispatcher.receive, events)

        engine: Engine = engine_type(
            lambda: load_model(self._asked.path, self._asked.dtype, folder, drafter),
            deliver,
            lambda: self._store.state.policy.engine,
        )
        dispatcher = Dispatcher(engine, self._observe)
        self._engine, self._dispatcher = engine, dispatcher
        # Shielded: cancelling this wait must not cancel the future that the engine is about to set.
        loaded = asyncio.shield(asyncio.wrap_future(engine.start()))
        facts, codec = await asyncio.gather(loaded, asyncio.to_thread(load_codec, folder))
        return facts, codec, describe_device()

    def _end_with_parent(self, stream_id: str) -> None:
        gone = ParentGone()
        is_told = self._admission.cancel_waiting(stream_id, gone) or self._upstreams.stop(stream_id, gone)
        if not is_told and self._dispatcher is not None:
            self._dispatcher.end(stream_id, gone)
        log.info("cancelled with its parent", extra={"request_id": stream_id})

    def _note_end(self, stream: StreamView) -> None:
        if stream.has_slot:
            self._admission.note_end(stream)
        self._cascade.ended(stream)

    def _note_stream(self) -> None:
        self._stream_changed.set()
        self.refresh()

    def _observe(self, events: tuple[EngineEvent, ...]) -> None:
        self._observers.fold(events)
        self._forecaster.fold(events)
        for event in events:
            if isinstance(event, EngineDied) and self._closing is None:
                self._model.fail(event.reason)
                self.refresh()

    @property
    def _engine_error(self) -> str | None:
        return (self._engine and self._engine.error) or self._model.failure

    def _state(self) -> ServerState:
        if self._closing:
            return self._closing
        if self._engine_error:
            return "engine_dead"
        if self._model.is_loading:
            return "starting"
        age_s = self._telemetry.step_age_s
        if age_s is not None and age_s > self._store.state.policy.engine.stall_s:
            return "stalled"
        return "draining" if self._admission.draining else "serving"

    def _view_model(self) -> ModelView:
        return self._model.view(self._store.state.policy)

    def _view_policy(self) -> PolicyView:
        """The store's view, made anew only when the state is another: four times a second it would cost too much."""
        state = self._store.state
        if state is not self._viewed_state:
            self._viewed_state, self._policy_view = state, self._store.view()
        return self._policy_view

    @property
    def _stalled(self) -> EngineStalled:
        return EngineStalled(self._store.state.policy.engine.stall_s)

    def _find_dispatcher(self) -> Dispatcher:
        if self._dispatcher is None:
            raise build_loading_refusal()
        if self._state() == "stalled":
            raise self._stalled
        return self._dispatcher


def _import_libraries() -> Any:
    """The engine and what loads for it: on one thread first, so that two threads never import them at once."""
    try:
        from server.engine.engine import Engine
        from server.models.loader import describe_device, load_model
        from server.text.tokenizer import load_text_codec
    except ValueError as fault:
        # mlx-lm 0.32 asks for 4,096 open files when it is imported, which fails where the hard limit is lower.
        if "limit" not in str(fault):
            raise
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise StartupError(
            f"The model cannot be loaded: a process may have {most:,} files open here, and mlx-lm needs 4,096 to be "
            "allowed; raise the hard limit (ulimit -Hn) and start again."
        ) from None

    return Engine, load_model, load_text_codec, describe_device
