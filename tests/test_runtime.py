"""The whole server in this process, over a model that steps when told: start, states, and an end that is in time."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import mlx.core as mx
import pytest

from console.local import LocalSource
from server.errors import AddressInUse, ModelNotFetched, ModelNotFound, PolicyConflict, PolicyInvalid, StartupError
from server.events import EventRing, ModelStateChanged, StreamEnded
from server.history.reader import HistoryReader
from server.listen import bind_socket
from server.models.cache import Forward, ModelFacts, Segment
from server.models.folder import EMBEDDED_FOLDER, HubId
from server.policy import LimitValue
from server.runtime import Runtime
from server.snapshot import FetchView
from server.telemetry import Telemetry

T = TypeVar("T")
VOCAB = 3072
CONFIG = "[policy]\nmax_in_flight = 2  # parent + 1\n"


class CountedState:
    """Only a length."""

    offset = 0
    nbytes = 0

    def checkpoint(self) -> object:
        return self.offset

    def rollback(self, checkpoint: object, keep_tokens: int = 0) -> None:
        assert isinstance(checkpoint, int)
        self.offset = checkpoint

    def arrays(self) -> list[mx.array]:
        return []


class SteppedModel:
    """Always says the same token. A step waits for `gate`, the load for `load_gate`."""

    def __init__(self) -> None:
        self.facts = ModelFacts("nano", str(EMBEDDED_FOLDER), "stepped", VOCAB, 4096, "float32", "", 0, 0, False, True)
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.load_gate = threading.Event()
        self.load_gate.set()
        self.load_fault: Exception | None = None
        self.loaded: tuple[str, Path | None] | None = None

    def load(self, path: str, dtype: str, folder: Path, drafter: Path | None) -> SteppedModel:
        assert (dtype, folder) == ("auto", EMBEDDED_FOLDER)
        self.loaded = (path, drafter)
        assert self.load_gate.wait(60)
        if self.load_fault:
            raise self.load_fault
        return self

    def build_state(self) -> CountedState:
        return CountedState()

    @property
    def mtp(self) -> None:
        return None

    def forward(self, segments: Sequence[Segment]) -> Forward:
        self.in_step.set()
        assert self.gate.wait(120)
        for segment in segments:
            segment.state.offset += len(segment.token_ids)  # type: ignore[misc]  # our own state, above
        logits = (mx.arange(VOCAB) == 65)[None] * 50.0
        return Forward(tuple(logits for _ in segments), ())


class Rig:
    """A runtime on a port of its own, and a client of it."""

    def __init__(self, folder: Path, model: SteppedModel) -> None:
        self.model = model
        self.config = folder / "homebase.toml"
        self.history = folder / "history.sqlite3"
        self.config.write_text(CONFIG)
        self.ring = EventRing()
        with bind_socket("127.0.0.1", 0) as listener:
            self.port = listener.getsockname()[1]
        overrides: dict[str, tuple[LimitValue, str]] = {
            "server.port": (self.port, "--port"),
            "history.path": (str(self.history), "--history"),
        }
        self.runtime = Runtime(self.config, b"", overrides, self.ring)
        self.source = LocalSource(self.runtime)
        self.told: list[str] = []
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> str:
        return self.runtime.snapshot.state

    def start(self, until: str = "serving") -> None:
        self.runtime.prepare()
        self.runtime.start()
        self.wait_for_state(until)

    def wait_for_state(self, state: str) -> None:
        self.wait_until(f"the state is {state}", lambda: self.state == state)

    def wait_until(self, what: str, look: Callable[[], T]) -> T:
        until = time.monotonic() + 30
        while not (seen := look()):
            assert time.monotonic() < until, f"{what}; {self.runtime.snapshot}"
            threading.Event().wait(0.01)
        return seen

    def open_stream(self) -> None:
        """A client reads a stream on its own thread; its lines go to `told`."""
        body: dict[str, Any] = {
            "model": "nano",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4000,
            "temperature": 0,
            "stream": True,
        }

        def read() -> None:
            with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=60) as response:
                self.told.extend(line for line in response.iter_lines() if line)

        before = self.runtime.snapshot.admission.admitted_total
        thread = threading.Thread(target=read)
        thread.start()
        self._threads.append(thread)
        self.wait_until("it is admitted", lambda: self.runtime.snapshot.admission.admitted_total > before)

    def join_clients(self) -> None:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a client was left waiting"

    def close(self) -> None:
        for gate in (self.model.gate, self.model.load_gate):
            gate.set()
        self.runtime.stop()
        self.join_clients()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> SteppedModel:
    stepped = SteppedModel()
    monkeypatch.setattr("server.models.loader.load_model", stepped.load)
    return stepped


@pytest.fixture
def rig(tmp_path: Path, model: SteppedModel) -> Iterator[Rig]:
    built = Rig(tmp_path, model)
    yield built
    built.close()


def test_it_listens_before_the_model_is_there_and_says_when_it_is(rig: Rig):
    rig.model.load_gate.clear()
    rig.start(until="starting")
    assert httpx.get(f"{rig.url}/health").status_code == 200
    assert httpx.get(f"{rig.url}/ready").status_code == 503
    assert rig.runtime.snapshot.model.state == "loading"
    rig.model.load_gate.set()
    rig.wait_for_state("serving")
    assert httpx.get(f"{rig.url}/ready").status_code == 200
    model = rig.runtime.snapshot.model
    assert (model.architecture, model.effective_context_limit_tokens, model.embedded) == ("stepped", 4096, True)
    assert model.load_s is not None
    states = [entry.notice.state for entry in rig.ring.after(0) if isinstance(entry.notice, ModelStateChanged)]
    assert states == ["loading", "ready"]


def test_snapshots_are_new_four_times_a_second_and_show_a_stream_at_once(rig: Rig):
    rig.start()
    first = rig.runtime.snapshot
    later = rig.wait_until("two more snapshots", lambda: rig.runtime.snapshot.sequence >= first.sequence + 2)
    assert later
    assert 0 < rig.runtime.snapshot.monotonic_s - first.monotonic_s < 5
    rig.model.gate.clear()
    rig.open_stream()
    (stream,) = rig.runtime.snapshot.streams
    assert (stream.phase, stream.model) == ("waiting", "nano")
    assert rig.runtime.snapshot.memory.resident_bytes > 1_000_000
    assert rig.runtime.snapshot.memory.machine_bytes > rig.runtime.snapshot.memory.resident_bytes


def test_stopping_tells_every_client_and_frees_the_port(rig: Rig):
    rig.start()
    rig.open_stream()
    rig.open_stream()
    began = time.monotonic()
    assert rig.runtime.stop()
    assert time.monotonic() - began < 3
    rig.join_clients()
    assert sum("shutting down" in line and '"code":"stream_stopped"' in line for line in rig.told) == 2
    assert rig.state == "stopped"
    assert rig.runtime.fault is None
    bind_socket("127.0.0.1", rig.port).close()
    ended = [entry.notice for entry in rig.ring.after(0) if isinstance(entry.notice, StreamEnded)]
    assert {(notice.outcome, notice.detail.partition(" in ")[0]) for notice in ended} == {
        ("cancelled", "ended with the server")
    }


def test_a_step_that_does_not_end_holds_up_neither_clients_nor_the_stop(rig: Rig):
    rig.start()
    rig.model.gate.clear()
    rig.open_stream()
    assert rig.model.in_step.wait(30)
    began = time.monotonic()
    assert rig.runtime.stop() is False, "the engine is left behind, and its owner is told so"
    assert time.monotonic() - began < 6
    rig.join_clients()
    assert any("shutting down" in line for line in rig.told)


def test_a_client_that_does_not_read_does_not_hold_up_the_stop(rig: Rig):
    rig.start()
    asked = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4000}
    body = json.dumps(asked | {"temperature": 0, "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.connect(("127.0.0.1", rig.port))
        client.sendall((head + body).encode())
        rig.wait_until("much is sent", lambda: sum(s.completion_tokens for s in rig.runtime.snapshot.streams) > 2000)
        began = time.monotonic()
        rig.runtime.stop()
        assert time.monotonic() - began < 6


def test_stopping_during_the_load_is_in_time(rig: Rig):
    rig.model.load_gate.clear()
    rig.start(until="starting")
    rig.wait_until(
        "the engine loads", lambda: any(thread.name == "homebase-engine" for thread in threading.enumerate())
    )
    began = time.monotonic()
    assert rig.runtime.stop() is False
    assert time.monotonic() - began < 6


def test_two_who_stop_it_both_wait_for_the_end(rig: Rig):
    rig.start()
    rig.open_stream()
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(rig.runtime.stop())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [True, True]
    assert rig.runtime.ended.is_set()


def test_stopping_what_never_started_is_fine(rig: Rig):
    assert rig.runtime.stop()


@pytest.fixture
def minutes_are_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time since a step counts 60 times: a stall of the minute that `engine.stall_s` allows is one in a second."""
    real = Telemetry.step_age_s.fget
    assert real is not None

    def hasten(telemetry: Telemetry) -> float | None:
        age_s = real(telemetry)
        return None if age_s is None else 60 * age_s

    monkeypatch.setattr(Telemetry, "step_age_s", property(hasten))


@pytest.mark.usefixtures("minutes_are_seconds")
def test_a_long_step_is_a_stall_and_its_end_is_the_end_of_it(rig: Rig):
    rig.start()
    rig.model.gate.clear()
    rig.open_stream()
    rig.wait_for_state("stalled")
    assert httpx.get(f"{rig.url}/health").status_code == 503
    rig.model.gate.set()
    rig.wait_for_state("serving")


@pytest.mark.usefixtures("minutes_are_seconds")
def test_a_stall_keeps_no_client_waiting_and_takes_nobody_new(rig: Rig):
    rig.start()
    rig.model.gate.clear()
    rig.open_stream()
    rig.join_clients()
    assert "stalled" in rig.told[-1]
    assert rig.told[-1].startswith('data: {"error"'), "and no [DONE]"
    body = {"model": "nano", "messages": [{"role": "user", "content": "x"}]}
    began = time.monotonic()
    answer = httpx.post(f"{rig.url}/v1/chat/completions", json=body)
    assert time.monotonic() - began < 2
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_stalled")
    (ended,) = (entry.notice for entry in rig.ring.after(0) if isinstance(entry.notice, StreamEnded))
    assert (ended.outcome, "stalled" in ended.detail) == ("failed", True)
    assert rig.runtime.snapshot.admission.in_flight == 1, "the engine has not let go of it"
    rig.model.gate.set()
    rig.wait_until("the slot is free", lambda: rig.runtime.snapshot.admission.in_flight == 0)
    rig.wait_for_state("serving")
    assert httpx.post(f"{rig.url}/v1/chat/completions", json=body | {"max_tokens": 2}).status_code == 200


def test_a_model_that_does_not_load_leaves_the_server_up_with_one_sentence(rig: Rig):
    rig.model.load_fault = MemoryError("no room for 60 GB")
    rig.start(until="engine_dead")
    snapshot = rig.runtime.snapshot
    assert snapshot.model.state == "failed"
    assert "no room for 60 GB" in snapshot.model.detail
    assert snapshot.model.detail.count("\n") == 0
    assert httpx.get(f"{rig.url}/health").status_code == 503
    answer = httpx.post(
        f"{rig.url}/v1/chat/completions", json={"model": "nano", "messages": [{"role": "user", "content": "x"}]}
    )
    assert answer.status_code in (500, 503)
    assert "no room for 60 GB" in answer.json()["error"]["message"]


def test_an_engine_that_dies_is_seen_everywhere(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    def fall_over(*_: object) -> None:
        raise RuntimeError("the device is gone")

    rig.start()
    rig.model.gate.clear()
    rig.open_stream()
    monkeypatch.setattr("server.engine.step.StepRunner.run_step", fall_over)
    rig.model.gate.set()
    rig.wait_for_state("engine_dead")
    rig.join_clients()
    assert "the device is gone" in rig.told[-1]
    snapshot = rig.runtime.snapshot
    assert not snapshot.engine.alive
    assert "the device is gone" in (snapshot.engine.error or "")
    assert (snapshot.engine.busy, snapshot.admission.in_flight) == (False, 0)
    answer = httpx.get(f"{rig.url}/health")
    assert answer.status_code == 503
    assert "the device is gone" in answer.json()["reason"]


def test_a_server_that_cannot_serve_says_so_at_the_start(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    async def refuse(*_: object) -> None:
        raise RuntimeError("no loop today")

    monkeypatch.setattr("server.runtime.serve_http", refuse)
    rig.runtime.prepare()
    with pytest.raises(StartupError, match="no loop today"):
        rig.runtime.start()


def test_what_can_be_known_before_is_told_before_anything_starts(tmp_path: Path, model: SteppedModel):
    rig = Rig(tmp_path, model)
    rig.config.write_text("[policy]\nmax_in_flight = 0\n")
    with pytest.raises(PolicyInvalid, match=r"homebase.toml:2"):
        rig.runtime.prepare()
    rig.config.write_text('[model]\npath = "/no/such/folder"\n')
    with pytest.raises(ModelNotFound):
        rig.runtime.prepare()
    rig.config.write_text("")
    with bind_socket("127.0.0.1", rig.port), pytest.raises(AddressInUse):
        rig.runtime.prepare()


def test_a_model_that_is_fetched_is_told_on_its_way_and_then_served(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    arrived = threading.Event()

    async def fetch(hub: HubId, report: Callable[[FetchView], object]) -> Path:
        if hub.repo == "someone/small-model":
            assert hub.revision == "v2"
            report(FetchView(done_bytes=3 * 10**9, total_bytes=12 * 10**9, rate_bps=5e7, eta_s=180.0))
            await asyncio.to_thread(arrived.wait, 30)
        return EMBEDDED_FOLDER

    monkeypatch.setattr("server.core.fetch_model", fetch)
    rig.config.write_text('[model]\npath = "someone/small-model@v2"\ndraft_path = "someone/head"\n')
    rig.start(until="starting")
    rig.wait_until("it is told", lambda: rig.runtime.snapshot.model.fetch)
    snapshot = rig.runtime.snapshot
    assert snapshot.model.id == "small-model"
    assert snapshot.model.path == "someone/small-model@v2"
    assert snapshot.model.detail == "fetching: 3.0 of 12.0 GB, 50.0 MB/s, 3 min left"
    assert "3.0 of 12.0 GB" in httpx.get(f"{rig.url}/ready").text
    arrived.set()
    rig.wait_for_state("serving")
    assert rig.runtime.snapshot.model.fetch is None
    assert rig.runtime.snapshot.model.path == str(EMBEDDED_FOLDER)
    assert rig.model.loaded == ("someone/small-model@v2", EMBEDDED_FOLDER)
    notices = [entry.notice for entry in rig.ring.after(0)]
    told = [notice.detail for notice in notices if isinstance(notice, ModelStateChanged)]
    assert any("3.0 of 12.0 GB" in detail for detail in told)


def test_a_model_that_cannot_be_fetched_leaves_the_server_up_with_one_sentence(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    async def fetch(hub: HubId, report: Callable[[FetchView], object]) -> Path:
        raise ModelNotFetched(f"{hub.repo} cannot be reached.")

    monkeypatch.setattr("server.core.fetch_model", fetch)
    rig.config.write_text('[model]\npath = "someone/small-model"\n')
    rig.start(until="engine_dead")
    assert rig.runtime.snapshot.model.state == "failed"
    assert rig.runtime.snapshot.model.detail == "someone/small-model cannot be reached."
    assert httpx.get(f"{rig.url}/health").status_code == 503


def test_stopping_during_a_fetch_is_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    ended = threading.Event()

    async def fetch(hub: HubId, report: Callable[[FetchView], object]) -> Path:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        raise AssertionError("it was not cancelled")

    monkeypatch.setattr("server.core.fetch_model", fetch)
    rig.config.write_text('[model]\npath = "someone/small-model"\n')
    rig.start(until="starting")
    rig.wait_until("it looks", lambda: "looking" in rig.runtime.snapshot.model.detail)
    began = time.monotonic()
    assert rig.runtime.stop() is True
    assert time.monotonic() - began < 6
    assert ended.is_set()


async def test_the_console_edits_limits_and_takes_them_back_through_its_source(rig: Rig):
    rig.start()
    changes: dict[str, LimitValue] = {"policy.max_in_flight": 1}
    draft = await rig.source.draft(changes)
    assert "-max_in_flight = 2" in draft.diff
    assert rig.config.read_text() == CONFIG
    state = await rig.source.save(changes, draft.etag)
    assert rig.config.read_text() == CONFIG.replace("= 2", "= 1")
    assert state is rig.source.policy()
    rig.wait_until("it is in force", lambda: rig.source.snapshot().admission.max_in_flight == 1)
    with pytest.raises(PolicyInvalid):
        await rig.source.save({"policy.max_in_flight": 99}, state.etag)
    await rig.source.undo()
    assert rig.config.read_text() == CONFIG
    with pytest.raises(PolicyConflict):
        await rig.source.undo()


async def test_the_console_stops_a_stream_and_its_client_is_told(rig: Rig):
    rig.start()
    rig.open_stream()
    (stream,) = rig.source.snapshot().streams
    assert await rig.source.stop(stream.id)
    await asyncio.to_thread(rig.join_clients)
    assert '"error"' in rig.told[-1]
    assert "shutting down" not in rig.told[-1]
    (ended,) = (entry.notice for entry in rig.source.notices(0) if isinstance(entry.notice, StreamEnded))
    assert ended.outcome == "cancelled"
    assert not await rig.source.stop(stream.id)
    rig.wait_until("the slot is free", lambda: rig.source.snapshot().admission.in_flight == 0)


async def test_another_connection_ends_a_stream_and_its_client_is_told_as_by_the_console(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    rig.start()
    rig.open_stream()
    (stream,) = rig.source.snapshot().streams
    url = f"{rig.url}/v1/requests/chatcmpl-{stream.id.removeprefix('req-')}/cancel"
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.post(url)
        assert (answer.status_code, answer.json()["id"]) == (200, stream.id)
        await asyncio.to_thread(rig.join_clients)
        assert '"stream_stopped"' in rig.told[-1]
        again = await client.post(url)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "request_not_live")
    assert any("stopped by a request of a client" in record.getMessage() for record in caplog.records)
    rig.wait_until("the slot is free", lambda: rig.source.snapshot().admission.in_flight == 0)


def test_an_operator_drains_and_resumes_and_the_log_says_who(rig: Rig, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    rig.start()
    rig.open_stream()
    body = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    for _ in range(2):
        answer = httpx.post(f"{rig.url}/homebase/drain").json()
        assert answer == {"state": "draining", "draining": True, "in_flight": 1}
    assert rig.state == "draining"
    assert httpx.get(f"{rig.url}/ready").json()["reason"] == "The server is draining."
    assert httpx.get(f"{rig.url}/health").status_code == 200
    refused = httpx.post(f"{rig.url}/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    (stream,) = rig.source.snapshot().streams
    assert stream.outcome is None
    httpx.post(f"{rig.url}/homebase/streams/{stream.id}/stop").raise_for_status()
    rig.join_clients()
    rig.wait_until("the slot is free", lambda: rig.runtime.snapshot.admission.in_flight == 0)
    assert httpx.post(f"{rig.url}/homebase/resume").json() == {"state": "serving", "draining": False, "in_flight": 0}
    assert httpx.post(f"{rig.url}/v1/chat/completions", json=body).status_code == 200
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if line.startswith(("draining", "stopped by"))] == [
        "draining, asked by 127.0.0.1: nothing new is admitted",
        "stopped by 127.0.0.1",
        "draining no more, asked by 127.0.0.1: requests are admitted again",
    ]


def test_who_follows_events_is_told_the_end_of_every_stream_and_then_let_go(rig: Rig):
    rig.start()
    rig.open_stream()
    lines: list[str] = []
    began = threading.Event()

    def follow() -> None:
        with httpx.stream("GET", f"{rig.url}/homebase/events", timeout=30) as response:
            for line in response.iter_lines():
                lines.append(line)
                began.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert began.wait(10)
    assert rig.runtime.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert "event: stream_ended" in lines
    last = [line for line in lines if line.startswith("data: ")][-1]
    assert '"state":"draining"' in last


def test_an_open_servers_last_key_cannot_be_taken_away_while_it_runs(tmp_path: Path, model: SteppedModel):
    rig = Rig(tmp_path, model)
    rig.config.write_text('[server]\nhost = "0.0.0.0"\napi_key = "k"\n')
    try:
        rig.start()
        # In the file it would be a server for this machine alone at the next start; this run is not.
        rig.config.write_text('[server]\nhost = "127.0.0.1"\n')
        rig.wait_until("the edit is in force", lambda: not rig.source.policy().policy.server.api_key)
        for headers in ({}, {"authorization": "Bearer k"}):
            answer = httpx.get(f"{rig.url}/health", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert not rig.source.snapshot().answers_strangers
    finally:
        rig.close()


async def test_acting_after_the_end_is_an_error_and_not_a_wait(rig: Rig):
    rig.start()
    rig.runtime.stop()
    with pytest.raises(StartupError, match="not running"):
        await rig.source.stop("x")


def test_an_open_address_without_a_key_is_warned_of(
    tmp_path: Path, model: SteppedModel, caplog: pytest.LogCaptureFixture
):
    rig = Rig(tmp_path, model)
    rig.config.write_text('[server]\nhost = "0.0.0.0"\nallow_unauthenticated = true\n')
    try:
        rig.start()
        told = [r.message for r in caplog.records if r.levelname == "WARNING" and "without any key" in r.message]
        assert len(told) == 1
        assert rig.source.policy().warnings == tuple(told)
        assert rig.source.snapshot().answers_strangers
    finally:
        rig.close()


def test_an_open_address_without_a_key_is_not_bound(tmp_path: Path, model: SteppedModel):
    rig = Rig(tmp_path, model)
    rig.config.write_text('[server]\nhost = "0.0.0.0"\n')
    with pytest.raises(PolicyInvalid, match=r"allow_unauthenticated = true"):
        rig.start()
    with socket.socket() as other:
        other.bind(("0.0.0.0", rig.port))
    rig.close()


def test_idle_snapshots_are_cheap(rig: Rig):
    rig.start()
    core = rig.runtime._core
    began = time.process_time()
    for _ in range(100):
        core.build_snapshot()
    assert (time.process_time() - began) / 100 < 0.005, "four a second must stay far below 3 % of a core"


async def ask(rig: Rig, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{rig.url}/v1/chat/completions", json=body, headers=headers)


async def test_what_is_over_is_remembered_without_a_word_of_it(rig: Rig):
    secret = "a word that nobody may find"
    rig.start()
    before_s = time.time()
    body: dict[str, Any] = {"model": "nano", "messages": [{"role": "user", "content": secret}], "max_tokens": 9}
    headers = {"x-homebase-session": "child", "x-homebase-parent-session": "parent", "user-agent": "opencode/1.18.0"}
    answer = await ask(rig, body, headers)
    assert answer.status_code == 200
    rig.model.gate.clear()
    for _ in range(2):
        rig.open_stream()
    assert (await ask(rig, body)).status_code == 429
    await rig.source.save({"policy.max_in_flight": 3}, rig.source.policy().etag)
    rig.model.gate.set()
    rig.close()
    with HistoryReader(rig.history) as reader:
        child, *others = reader.read_requests(before_s, time.time())
        changes = reader.read_policy_changes(before_s)
    assert (child.session, child.parent_session, child.lane, child.client) == (
        "child",
        "parent",
        "child",
        "opencode/1.18.0",
    )
    assert (child.decision, child.outcome, child.model, child.max_tokens) == ("admitted", "length", "nano", 9)
    usage = answer.json()["usage"]
    assert (child.prompt_tokens, child.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert child.request_id == answer.headers["x-request-id"]
    assert child.ttft_s is not None
    assert child.duration_s >= child.ttft_s > 0
    refused = [each for each in others if not each.was_admitted]
    assert [(each.decision, each.limit_value, each.used_value, each.status) for each in refused] == [
        ("in_flight_full", 2, 2, 429)
    ]
    assert len(others) == 3
    assert [(each.limit_key, each.old_value, each.new_value, each.origin) for each in changes] == [
        ("policy.max_in_flight", "2", "3", "console")
    ]
    data = b"".join(file.read_bytes() for file in rig.history.parent.glob("history.sqlite3*"))
    assert data
    assert secret.encode() not in data


def test_history_that_cannot_be_written_stops_nothing(rig: Rig):
    rig.history.mkdir()
    rig.start()
    body: dict[str, Any] = {"model": "nano", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert httpx.post(f"{rig.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    assert rig.runtime.stop()
    assert rig.history.is_dir()
