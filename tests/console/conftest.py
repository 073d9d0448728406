"""What all console tests share: a canned source, sample snapshots, and text snapshots of the screen."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.app import App

from console.app import HomebaseApp
from console.themes import load_themes
from server.errors import PolicyConflict
from server.events import AnyNotice, NumberedNotice, Refused, StepCost
from server.policy import LimitValue, Policy, apply_changes, list_limits, read_limit, validate_policy
from server.policy_store import PolicyDraft, PolicyState
from server.snapshot import (
    AdmissionView,
    EngineView,
    MemoryView,
    ModelView,
    PolicyView,
    RatesView,
    Snapshot,
    StreamView,
)

NOW_S = 1_796_040_131.0
"""Unix time of all samples: 2026-11-30 12:02:11 UTC."""
MONOTONIC_S = 5_000.0
SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (120, 40), (200, 60))
GIB = 1024**3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="write the text snapshots of the console anew")


class FakeSource:
    """A server that is only data. `acts` records what the console asked it to do."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.shown = snapshot
        self.ring: list[NumberedNotice] = []
        self.state = PolicyState(
            policy=Policy(),
            path="/home/ada/homebase.toml",
            exists=True,
            etag="etag-1",
            problem=None,
            origins={limit.key: "default" for limit in list_limits()},
            can_undo=False,
        )
        self.acts: list[tuple[str, Any]] = []
        self.fails: Exception | None = None
        """Raised by the next acts that write, when set."""
        self.stops = True
        """What `stop` answers."""

    def snapshot(self) -> Snapshot:
        return self.shown

    def notices(self, after: int) -> tuple[NumberedNotice, ...]:
        return tuple(entry for entry in self.ring if entry.sequence > after)

    def policy(self) -> PolicyState:
        return self.state

    async def draft(self, changes: Mapping[str, LimitValue]) -> PolicyDraft:
        lines: list[str] = []
        for key, value in changes.items():
            name, old = key.rpartition(".")[2], read_limit(self.state.policy, key)
            if old != value:
                lines += [f"-{name} = {_toml(old)}", f"+{name} = {_toml(value)}"]
        return PolicyDraft(diff="\n".join(lines), etag=self.state.etag, problem=None)

    async def save(self, changes: Mapping[str, LimitValue], etag: str) -> PolicyState:
        self.acts.append(("save", dict(changes)))
        if self.fails is not None:
            raise self.fails
        if etag != self.state.etag:
            raise PolicyConflict("homebase.toml changed since this edit began.", tuple(changes))
        return self._write(changes)

    def _write(self, changes: Mapping[str, LimitValue]) -> PolicyState:
        policy = validate_policy(apply_changes(msgspec.to_builtins(self.state.policy), changes))
        origins = {**self.state.origins, **dict.fromkeys(changes, "homebase.toml:7")}
        self.state = msgspec.structs.replace(
            self.state, policy=policy, origins=origins, etag=f"{self.state.etag}+", can_undo=True
        )
        return self.state

    async def undo(self) -> PolicyState:
        self.acts.append(("undo", None))
        if self.fails is not None:
            raise self.fails
        self.state = msgspec.structs.replace(self.state, policy=Policy(), etag=f"{self.state.etag}-", can_undo=False)
        return self.state

    async def stop(self, stream_id: str) -> bool:
        self.acts.append(("stop", stream_id))
        if self.fails is not None:
            raise self.fails
        return self.stops

    def publish(self, *notices: AnyNotice) -> None:
        """Append notices as the server would."""
        for notice in notices:
            self.ring.append(NumberedNotice(len(self.ring) + 1, notice))

    def change(self, **changes: Any) -> None:
        """Put a new snapshot in place with some fields changed; its sequence number rises."""
        self.shown = msgspec.structs.replace(self.shown, sequence=self.shown.sequence + 1, **changes)


def _toml(value: LimitValue) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


class Samples:
    """Builders of snapshots and their parts; every argument replaces a field."""

    def stream(self, **fields: Any) -> StreamView:
        """A parent in decode, unless told otherwise."""
        base = StreamView(
            id="s-41",
            session="ses-a1b2c3d4",
            parent_session=None,
            lane="parent",
            client="opencode",
            model="flash-next-4bit",
            phase="decode",
            context_tokens=52_110,
            context_limit_tokens=131_072,
            prompt_tokens=50_906,
            cached_tokens=47_832,
            completion_tokens=1_204,
            max_tokens=8_192,
            prefill_done_tokens=50_906,
            prefill_tps=1_377.0,
            decode_tps=58.4,
            ttft_s=0.42,
            age_s=22.4,
            idle_s=0.02,
            streaming=True,
            mtp="on",
            draft_depth=3,
            acceptance_ratio=0.74,
            acceptance_by_depth=(0.88, 0.74, 0.61),
            tokens_per_step=2.6,
            decode_history_tps=tuple(round(52 + 7 * abs((i % 9) - 4) / 4 + i % 3, 1) for i in range(22)),
        )
        return msgspec.structs.replace(base, **fields)

    def prefill_child(self, **fields: Any) -> StreamView:
        """A child of `stream` in the middle of its prefill."""
        child = self.stream(
            id="s-42",
            session="ses-e5f6a7b8",
            parent_session="ses-a1b2c3d4",
            lane="child",
            phase="prefill",
            context_tokens=18_432,
            prompt_tokens=44_911,
            cached_tokens=4_096,
            completion_tokens=0,
            prefill_done_tokens=18_432,
            prefill_tps=1_377.0,
            decode_tps=None,
            ttft_s=None,
            age_s=10.4,
            idle_s=0.4,
            decode_history_tps=(),
            draft_depth=None,
            acceptance_ratio=None,
            acceptance_by_depth=(),
            tokens_per_step=None,
        )
        return msgspec.structs.replace(child, **fields)

    def finished(self, **fields: Any) -> StreamView:
        """A stream that ended three seconds ago."""
        ended = self.stream(
            id="s-40",
            session="ses-c9d0e1f2",
            lane="unknown",
            client="curl",
            phase="finished",
            prompt_tokens=310,
            cached_tokens=0,
            prefill_done_tokens=310,
            completion_tokens=256,
            context_tokens=566,
            max_tokens=256,
            age_s=6.1,
            outcome="length",
            finished_ago_s=3.0,
        )
        return msgspec.structs.replace(ended, **fields)

    def refused(self, **fields: Any) -> Refused:
        """A third request under `max_in_flight = 2`."""
        base = Refused(
            time_s=NOW_S - 12,
            request_id="r-77",
            code="in_flight_full",
            message="2 of 2 completions are in flight (max_in_flight = 2); a slot is expected in about 12 s.",
            status=429,
            retry_after_s=12,
            limit=2,
            used=2,
            session="ses-0f0f0f0f",
            lane="unknown",
            client="openai-python",
            prompt_tokens=1_830,
            max_tokens=512,
        )
        return msgspec.structs.replace(base, **fields)

    def model(self, **fields: Any) -> ModelView:
        base = ModelView(
            id="flash-next-4bit",
            path="/models/flash-next-4bit",
            state="ready",
            detail="ready",
            architecture="qwen4_exp",
            dtype="bfloat16",
            quantization="4-bit g64",
            parameters=35_000_000_000,
            weights_bytes=19 * GIB,
            context_limit_tokens=262_144,
            effective_context_limit_tokens=131_072,
            device="Apple M5 Max",
            mtp="auto: as deep as pays, stream by stream",
            embedded=False,
            load_s=11.2,
        )
        return msgspec.structs.replace(base, **fields)

    def snapshot(self, *streams: StreamView, refusals: tuple[Refused, ...] = (), **fields: Any) -> Snapshot:
        """A serving server with these streams."""
        open_streams = [s for s in streams if s.outcome is None]
        codes: dict[str, int] = {}
        for refused in refusals:
            codes[refused.code] = codes.get(refused.code, 0) + 1
        decoding = sum(s.decode_tps or 0.0 for s in open_streams if s.phase == "decode")
        prefilling = sum(s.prefill_tps or 0.0 for s in open_streams if s.phase == "prefill")
        base = Snapshot(
            sequence=1,
            time_s=NOW_S,
            monotonic_s=MONOTONIC_S,
            uptime_s=11_564.0,
            state="serving",
            host="127.0.0.1",
            port=11234,
            version="0.1.0",
            streams=streams,
            admission=AdmissionView(
                in_flight=len(open_streams),
                max_in_flight=2,
                peak_in_flight=2,
                admitted_total=41,
                refused_total=len(refusals),
                refused_by_code=codes,
                finished_by_outcome={"stop": 30, "length": 6, "cancelled": 3},
                recent_refusals=refusals,
            ),
            policy=PolicyView(
                path="/home/ada/homebase.toml",
                exists=True,
                etag="etag-1",
                problem=None,
                values={limit.key: limit.default for limit in list_limits()},
            ),
            model=self.model(),
            memory=MemoryView(
                active_bytes=21 * GIB,
                cache_bytes=3 * GIB,
                peak_bytes=29 * GIB,
                resident_bytes=24 * GIB,
                machine_bytes=64 * GIB,
            ),
            rates=RatesView(
                decode_tps=decoding,
                prefill_tps=prefilling,
                decode_history_tps=_wave(decoding, 300),
                prefill_history_tps=_wave(prefilling, 300, period=40, on=12),
                decode_tokens_total=48_210,
                prefill_tokens_total=1_204_331,
            ),
            engine=EngineView(
                alive=True,
                busy=bool(open_streams),
                steps_total=90_412,
                step_s=0.017 if open_streams else None,
                step_age_s=0.01 if open_streams else None,
                error=None,
                tokens_per_step=2.6 if open_streams else None,
                cost=StepCost(step_s=0.011, row_s=0.0004, error_ratio=0.06, steps=90_412)
                if open_streams
                else StepCost(),
            ),
        )
        return msgspec.structs.replace(base, **fields)

    def empty(self) -> Snapshot:
        """Nothing has happened yet."""
        snapshot = self.snapshot()
        admission = msgspec.structs.replace(
            snapshot.admission, peak_in_flight=0, admitted_total=0, finished_by_outcome={}
        )
        return msgspec.structs.replace(snapshot, admission=admission)

    def nano(self) -> Snapshot:
        """Nothing has happened yet on the embedded model."""
        model = self.model(
            id="nano",
            path="nano",
            dtype="float32",
            quantization="",
            parameters=1_900_000,
            weights_bytes=7_600_000,
            context_limit_tokens=2_048,
            effective_context_limit_tokens=2_048,
            embedded=True,
        )
        return msgspec.structs.replace(self.empty(), model=model)

    def one_decode(self) -> Snapshot:
        return self.snapshot(self.stream())

    def parent_and_child(self) -> Snapshot:
        """Parent in decode, its child in prefill, two refusals."""
        return self.snapshot(self.stream(), self.prefill_child(), refusals=self.two_refusals())

    def two_refusals(self) -> tuple[Refused, ...]:
        second = self.refused(
            time_s=NOW_S - 223,
            request_id="r-70",
            client="curl",
            session="ses-77777777",
            prompt_tokens=90,
            max_tokens=None,
            retry_after_s=31,
        )
        return (self.refused(), second)

    def with_finished(self) -> Snapshot:
        """One stream in flight, two that just ended."""
        failed = self.finished(
            id="s-39",
            client="openai-python",
            outcome="cancelled",
            outcome_detail="client closed the connection in decode",
            finished_ago_s=5.0,
        )
        return self.snapshot(self.stream(), self.finished(), failed)

    def many(self, count: int = 12) -> Snapshot:
        """More streams than bands fit."""
        streams = tuple(
            self.stream(
                id=f"s-{100 + i}",
                session=f"ses-{i:08x}",
                lane="parent" if i % 2 == 0 else "child",
                parent_session=None if i % 2 == 0 else f"ses-{i - 1:08x}",
                decode_tps=40.0 + i,
                context_tokens=10_000 + 1_000 * i,
                prompt_tokens=8_796 + 1_000 * i,
                prefill_done_tokens=8_796 + 1_000 * i,
                cached_tokens=4_096,
                age_s=5.0 + i,
            )
            for i in range(count)
        )
        snapshot = self.snapshot(*streams)
        admission = msgspec.structs.replace(snapshot.admission, max_in_flight=count, peak_in_flight=count)
        return msgspec.structs.replace(snapshot, admission=admission)

    def loading(self) -> Snapshot:
        model = self.model(state="loading", detail="reading weights: 2.1 of 19.0 GiB", load_s=None)
        return msgspec.structs.replace(self.empty(), state="starting", model=model, uptime_s=3.0)

    def engine_dead(self) -> Snapshot:
        failed = self.finished(
            id="s-41", client="opencode", lane="parent", outcome="failed", outcome_detail="the engine has ended"
        )
        snapshot = self.snapshot(failed, state="engine_dead")
        engine = msgspec.structs.replace(
            snapshot.engine, alive=False, busy=False, error="RuntimeError: [metal::malloc] out of memory"
        )
        return msgspec.structs.replace(snapshot, engine=engine)

    def stale(self) -> Snapshot:
        """Busy, and seven seconds old by the tests' clock."""
        snapshot = self.parent_and_child()
        engine = msgspec.structs.replace(snapshot.engine, step_age_s=7.0)
        return msgspec.structs.replace(snapshot, monotonic_s=MONOTONIC_S - 7, engine=engine)

    def poison(self) -> Snapshot:
        """Names that would wreck a careless screen."""
        names = (
            "evil\x1b[2J\x1b]0;x\x07",
            "日本語クライアント名",
            "a\tb\r\nc\u202eflip\u200d",
            "[red]markup[/] $x {y}",
        )
        streams = tuple(
            self.stream(id=f"s-{i}", session=f"ses-{i}", client=name, model="模型\x1b[31m")
            for i, name in enumerate(names[:2])
        )
        refusals = tuple(self.refused(client=name, message=f"said {name}", code="in_flight_full") for name in names)
        return self.snapshot(*streams, refusals=refusals)


def _wave(top: float, count: int, period: int = 90, on: int = 70) -> tuple[float, ...]:
    busy = [(count - i) % period < on for i in range(count)]
    return tuple(round(top * (0.9 + 0.1 * ((i * 7) % 5) / 4), 1) if busy[i] and top else 0.0 for i in range(count))


@pytest.fixture(autouse=True)
def _calm_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("COLUMNS", "LINES", "NO_COLOR", "TEXTUAL_THEME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def samples() -> Samples:
    return Samples()


@pytest.fixture
def source(samples: Samples) -> FakeSource:
    """A source that shows parent and child until told otherwise."""
    return FakeSource(samples.parent_and_child())


@pytest.fixture
def make_source() -> Callable[[Snapshot], FakeSource]:
    return FakeSource


@pytest.fixture
def make_app() -> Callable[..., HomebaseApp]:
    """Builds the application over a source, with a clock that stands still and no timer of its own."""

    def build(
        source: FakeSource,
        *,
        theme: str = "homebase-dark",
        ascii: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> HomebaseApp:
        console = msgspec.structs.replace(source.state.policy.console, theme=theme, ascii=ascii)
        policy = msgspec.structs.replace(source.state.policy, console=console)
        source.state = msgspec.structs.replace(source.state, policy=policy)
        app = HomebaseApp(
            source,
            themes=load_themes(),
            policy=console,
            clock=clock or (lambda: MONOTONIC_S + 0.2),
            auto_refresh=False,
        )
        app.animation_level = "none"
        return app

    return build


def screen_text(app: App[Any]) -> str:
    """What the terminal shows now, row by row, blanks at the right dropped."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"


@pytest.fixture
def read_screen() -> Callable[[App[Any]], str]:
    return screen_text


@pytest.fixture
def snap(request: pytest.FixtureRequest) -> Callable[[App[Any], str], None]:
    """Compares the screen with `snapshots/NAME-WxH.txt`; `--update-snapshots` writes it."""
    update = bool(request.config.getoption("--update-snapshots", default=False)) or bool(
        os.environ.get("UPDATE_SNAPSHOTS")
    )

    def compare(app: App[Any], name: str) -> None:
        path = SNAPSHOTS / f"{name}-{app.size.width}x{app.size.height}.txt"
        shown = screen_text(app)
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(shown, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path.name} does not exist; look at the screen, then run with --update-snapshots:\n{shown}")
        wanted = path.read_text(encoding="utf-8")
        if shown != wanted:
            diff = difflib.unified_diff(wanted.splitlines(), shown.splitlines(), "kept", "shown", lineterm="")
            pytest.fail("the screen differs from " + path.name + "\n" + "\n".join(diff))

    return compare
