"""The composition root: builds everything, starts it in order, and stops it in reverse.

The server has a thread and a loop of its own, so that neither a stalled terminal nor a busy screen slows the API.
Only this module makes long-lived objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, TypeVar

from server.core import Core
from server.errors import StartupError
from server.events import EventRing
from server.http_server import probe, serve_http
from server.listen import bind_socket, format_address
from server.policy import LimitValue, Policy
from server.policy_store import PolicyStore
from server.snapshot import Snapshot

SNAPSHOT_S = 0.25
"""A new snapshot four times a second: what an eye can follow."""

WATCHED_S, SNAPSHOT_UNWATCHED_S = 5.0, 1.0
"""When nobody has looked for so long, as with no console, one a second will do: a stalled engine is noticed by it."""

START_S = 15.0
"""From the thread's start to the answer to its own first request; it took 0.5 s on a busy box."""

STREAMS_END_S = 1.0
"""Until all open streams have sent their last event; they are told at once, whatever the engine does."""

HTTP_END_S = 2.0
"""Until all connections are closed; more than the second that hypercorn gives them."""

ENGINE_END_S = 1.5
"""Until the engine's step at hand is over, counted from the beginning of the end; a longer one is left behind."""

STOP_S = 4.5
"""All of it together and a little more; with a screen that does not leave, an operator waits less than 6 s."""

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Runtime:
    """The whole server, as its owner on the main thread sees it.

    `prepare`, `start`, `stop`, in this order. `snapshot`, `ring` and `store.state` may be read from any thread at any
    time after `prepare`.
    """

    def __init__(
        self,
        config_path: Path,
        template: bytes,
        overrides: Mapping[str, tuple[LimitValue, str]],
        ring: EventRing,
    ) -> None:
        self.ring = ring
        self.store = PolicyStore(config_path, template, overrides, ring.publish)
        self._snapshot: Snapshot
        self._looked_s = 0.0
        """When somebody last asked for the snapshot."""
        self.ended = threading.Event()
        """Set when the server thread is over, asked for or not."""
        self.on_end: Callable[[], object] = lambda: None
        """Called once on the server thread as its last act."""
        self._core: Core
        self._listener: socket.socket
        self._held = contextlib.ExitStack()
        """Closes the listener, if the HTTP server has not taken it over."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked: asyncio.Event
        self._listening: Future[None] = Future()
        self._engine_left = True
        self._fault: str | None = None
        self._stop_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="homebase-server", daemon=True)

    @property
    def snapshot(self) -> Snapshot:
        """The newest one; frozen, replaced as a whole. From any thread; four a second are made for who looks."""
        self._looked_s = time.monotonic()
        return self._snapshot

    @property
    def address(self) -> str:
        """Where it listens, as `host:port`."""
        return format_address(self._core.host, self._core.port)

    @property
    def fault(self) -> str | None:
        """Why the server thread ended without being asked to; None while it runs or when it was asked."""
        return self._fault

    def prepare(self) -> Policy:
        """Check all that can be checked before anything starts, and bind the port.

        Raises PolicyInvalid, ModelNotFound, CheckpointInvalid, AddressInUse or AddressInvalid.
        """
        policy = self.store.load().policy
        self._core = Core(self.store, self.ring, self._show)
        listener = bind_socket(policy.server.host, policy.server.port)
        self._listener = self._held.enter_context(contextlib.closing(listener))
        self._core.refresh()
        return policy

    def start(self) -> None:
        """Start the server thread; returns when it answers requests, while the model begins to load.

        Raises StartupError when it does not.
        """
        self._thread.start()
        try:
            self._listening.result(START_S)
        except FutureTimeout:
            raise StartupError(f"The server at {self.address} did not start within {START_S:.0f} s.") from None
        for warning in self.store.state.warnings:
            log.warning("%s", warning)

    def call(self, act: Callable[[], Coroutine[Any, Any, Result]]) -> Future[Result]:
        """Run a coroutine function on the server's loop, from any other thread."""
        if self._loop is None or self.ended.is_set():
            future: Future[Result] = Future()
            future.set_exception(StartupError("The server is not running."))
            return future
        return asyncio.run_coroutine_threadsafe(act(), self._loop)

    def stop_stream(self, stream_id: str) -> bool:
        """End one stream; False when it is already over. On the server's loop, see `call`."""
        return self._core.stop_stream(stream_id)

    def stop(self) -> bool:
        """Tell every client, end everything, and wait for it, for 4.5 s at most; calling it again waits with the first.

        False when something is still busy (a long engine step, a client that does not read): the caller then ends the
        process without waiting for its threads.
        """
        with self._stop_lock:
            if self._thread.ident is None:
                self._held.close()
                return True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended by itself
                    self._loop.call_soon_threadsafe(self._stop_asked.set)
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                log.error("the server thread does not end; it is at %s", _describe_place(self._thread))
                return False
            return self._engine_left

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except Exception as error:
            self._note_fault(error)
        finally:
            self._held.close()
            self.ended.set()
            self.on_end()

    def _note_fault(self, error: Exception) -> None:
        if not self._listening.done():
            told = error if isinstance(error, StartupError) else StartupError(f"The server cannot start: {error!r}.")
            self._listening.set_exception(told)
            return
        self._fault = f"The server ended by a fault: {type(error).__name__}: {error}"
        log.error("the server ended by a fault", exc_info=error)
        self._core.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        hang_up = asyncio.Event()
        http = asyncio.create_task(serve_http(self._core.build_app(), self._listener, hang_up.wait), name="http")
        await self._come_up(http)
        self._core.start_history()
        load = asyncio.create_task(self._core.load(), name="load")
        work = [asyncio.create_task(task) for task in (self._tick(), self._watch_policy(), self._stop_asked.wait())]
        try:
            await asyncio.wait((http, work[-1]), return_when=asyncio.FIRST_COMPLETED)
            load.cancel()  # or it would start an engine behind our back
            await self._shut_down(http, hang_up)
        finally:
            for task in (*work, http):
                task.cancel()
            await asyncio.wait(work, timeout=0.5)

    async def _come_up(self, http: asyncio.Task[None]) -> None:
        """Wait until our own first request is answered, or say why it is not."""
        probing = asyncio.create_task(probe(self._core.host, self._core.port))
        done, _ = await asyncio.wait((http, probing), return_when=asyncio.FIRST_COMPLETED)
        if http in done:
            probing.cancel()
            http.result()
            raise StartupError(f"The server at {self.address} ended while it started.")
        probing.result()
        log.info("listening at http://%s", self.address)
        self._listening.set_result(None)

    async def _shut_down(self, http: asyncio.Task[None], hang_up: asyncio.Event) -> None:
        self._core.begin_end()
        # The engine ends on its own thread while the streams are told, and neither waits for the other.
        engine = asyncio.create_task(self._core.stop_engine(ENGINE_END_S))
        await self._core.end_streams(STREAMS_END_S)
        hang_up.set()
        await asyncio.wait((http,), timeout=HTTP_END_S)
        self._engine_left = await engine
        self._core.close()
        log.info("stopped%s", "" if self._engine_left else "; an engine step is still running and is left behind")
        if http.done():
            http.result()

    async def _tick(self) -> None:
        while True:
            self._core.refresh()
            is_watched = time.monotonic() - self._looked_s < WATCHED_S
            await asyncio.sleep(SNAPSHOT_S if is_watched else SNAPSHOT_UNWATCHED_S)

    async def _watch_policy(self) -> None:
        try:
            await self.store.watch(self._stop_asked)
        except OSError as error:
            log.warning("edits of homebase.toml made outside are not noticed: %s", error)

    def _show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot


def _describe_place(thread: threading.Thread) -> str:
    """The innermost calls of a thread, for the log of a fault that nobody can reproduce."""
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]  # documented
    calls = traceback.extract_stack(frame)[-6:] if frame else []
    return " > ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in calls) or "its end"
