"""What a scrape is told: valid text in both forms, only what is known, in bounded time."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from server.events import (
    EngineEvent,
    EventRing,
    MemorySampled,
    PrefillAdvanced,
    PrefixCacheSampled,
    StepDone,
    TokensEmitted,
)
from server.metrics.exposition import Exposition, wants_openmetrics
from server.metrics.families import FAMILIES
from server.metrics.observers import Observers
from server.metrics.tally import Tally
from server.policy import UpstreamPolicy
from server.snapshot import ModelView, PolicyView, Snapshot
from server.telemetry import ServerFacts, StreamIdentity, Telemetry
from server.upstreams.health import Health

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
"""What Prometheus 3 sends."""

MODEL = ModelView(
    id='org/"m"',
    path="/m",
    state="ready",
    detail="",
    architecture="qwen4_exp",
    dtype="bfloat16",
    quantization="4-bit g32",
    parameters=1,
    weights_bytes=2**30,
    context_limit_tokens=4096,
    effective_context_limit_tokens=4096,
    device="cpu",
    mtp="auto",
    embedded=False,
    load_s=1.0,
)
FACTS = ServerFacts(
    state="serving",
    host="127.0.0.1",
    port=1,
    version="0.1.0",
    in_flight=1,
    max_in_flight=2,
    peak_in_flight=2,
    admitted_total=7,
    policy=PolicyView("", True, "", None, {"server.keep_alive_s": 5.0}),
    model=MODEL,
    engine_alive=True,
    engine_error=None,
    resident_bytes=10,
    machine_bytes=20,
)


class Bench:
    """An exposition over a real telemetry and a real tally; only what the core knows is made up."""

    def __init__(self, **changes: Any) -> None:
        self.facts = msgspec.structs.replace(FACTS, **changes)
        self.telemetry, self.tally = Telemetry(EventRing()), Tally()
        self.observers = Observers(self.telemetry, self.tally)
        self.exposition = Exposition(self.tally, self.build_snapshot)

    def build_snapshot(self) -> Snapshot:
        return self.telemetry.build_snapshot(self.facts)

    def open(self, request_id: str = "r", prompt_tokens: int = 10) -> None:
        identity = StreamIdentity("s", None, "unknown", "curl", MODEL.id, prompt_tokens, 0, 50, 4096, True, 0.0)
        self.observers.stream_opened(request_id, identity)

    def fold(self, *events: EngineEvent) -> None:
        self.observers.fold(events)

    def scrape(self, accept: str = "") -> dict[str, float]:
        """Value by name and the labels' values, these in the order of the labels' names."""
        text, content_type = self.exposition.render(accept)
        parse = parse_openmetrics if content_type == OPEN else parse_text
        return {
            sample.name + "".join(f"|{label}" for _, label in sorted(sample.labels.items())): sample.value
            for family in parse(text.decode())
            for sample in family.samples
        }


def test_both_forms_parse_and_tell_the_same() -> None:
    bench = Bench()
    bench.open()
    bench.fold(
        StepDone(2.0, 0.5, 10, 1, 1), PrefillAdvanced("r", 10, 10, 0.5), TokensEmitted("r", (1,), time.monotonic())
    )
    plain, openmetrics = bench.scrape(), bench.scrape(PROMETHEUS)
    for moving in ("homebase_uptime_seconds", "homebase_step_age_seconds"):
        assert plain.pop(moving) <= openmetrics.pop(moving)
    assert plain == openmetrics
    assert plain['vllm:prompt_tokens_total|org/"m"'] == 10
    assert plain["homebase_step_seconds_bucket|0.25|prefill"] == 0
    assert plain["homebase_step_seconds_bucket|0.5|prefill"] == plain["homebase_step_seconds_count|prefill"] == 1


def test_every_family_can_be_told_and_nothing_else_is() -> None:
    far = Health().view(UpstreamPolicy("far-away", "http://127.0.0.1:1/v1"))
    bench = Bench(memory_budget_bytes=2**32, promised_bytes=2**29, upstreams=(far,))
    bench.fold(MemorySampled(1, 2, 3), PrefixCacheSampled(4, 5, 6))
    bench.open()
    bench.fold(StepDone(2.0, 0.5, 10, 1, 1), PrefillAdvanced("r", 10, 10, 0.5), TokensEmitted("r", (1,), 2.0))
    bench.fold(StepDone(3.0, 0.5, 0, 2, 1), TokensEmitted("r", (1, 2), 3.0, 1, 1))
    text, _ = bench.exposition.render("")
    told = [line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")]
    assert told == [family.name for family in FAMILIES]
    assert all(f"# HELP {family.name} {family.help}" in text.decode() for family in FAMILIES)


def test_what_is_not_known_is_left_out() -> None:
    told = set(Bench(model=msgspec.structs.replace(MODEL, state="loading")).scrape())
    for unknown in (
        "homebase_mlx",
        "homebase_memory_budget",
        "homebase_prefix_cache",
        "vllm:kv_cache",
        "homebase_model",
    ):
        assert not [name for name in told if name.startswith(unknown)]
    for unknown in ("homebase_draft_acceptance_ratio", "homebase_step_age_seconds"):
        assert unknown not in told
    assert "spec_decode_num_accepted_tokens_per_pos" not in Bench().exposition.render("")[0].decode()
    assert "homebase_build_info|0.1.0" in told


def test_gauges_are_the_snapshots() -> None:
    bench = Bench(memory_budget_bytes=2**32, promised_bytes=2**29, state="stalled")
    for request_id in ("a", "b", "c"):
        bench.open(request_id)
    bench.fold(PrefillAdvanced("a", 5, 5, 0.1), TokensEmitted("b", (1,), 1.0), MemorySampled(1, 2, 3))
    bench.fold(PrefixCacheSampled(4, 5, 6))
    told = bench.scrape()
    model = '|org/"m"'
    assert told["vllm:num_requests_running" + model] == 2
    assert told["vllm:num_requests_waiting" + model] == 1
    # 4 GiB, less 5 % for steps and 1 GiB of weights; half a GiB of that is promised.
    assert told["vllm:kv_cache_usage_perc" + model] == pytest.approx(0.5 / (4 * 0.95 - 1))
    assert [told[f"homebase_requests_in_flight{part}"] for part in ("", "_limit", "_peak")] == [1, 2, 2]
    assert told["homebase_requests_admitted_total"] == 7
    assert [told[f"homebase_mlx_{part}_bytes"] for part in ("active", "cache", "peak")] == [1, 2, 3]
    assert [told[f"homebase_prefix_cache{part}_bytes"] for part in ("", "_budget", "_disk")] == [4, 5, 6]
    assert (told["homebase_resident_bytes"], told["homebase_machine_bytes"]) == (10, 20)
    assert told["homebase_keep_alive_seconds"] == 5
    assert (told["homebase_state|stalled"], told["homebase_state|serving"]) == (1, 0)
    assert "homebase_model_info" in "".join(told)


def test_no_request_session_or_client_is_named() -> None:
    bench = Bench()
    bench.open("req-secret")
    bench.observers.stream_ended("req-secret", "stop")
    text = bench.exposition.render("")[0].decode()
    for named in ("req-secret", "curl", "python_info", "process_"):
        assert named not in text


def test_what_a_stream_did_stays_counted_when_its_row_has_gone() -> None:
    bench = Bench()
    for number in range(200):
        bench.open(str(number))
        bench.observers.stream_ended(str(number), "stop")
    assert len(bench.telemetry.streams()) < 200
    assert bench.scrape()['vllm:request_success_total|stop|org/"m"'] == 200


def test_a_scrape_takes_as_long_after_many_observations_as_after_few() -> None:
    bench = Bench()
    bench.open()
    for number in range(100):
        bench.fold(StepDone(number / 100, 0.01, 0, 3, 1), TokensEmitted("r", (1, 2, 3), number / 100, 3, 2))
    few, few_s = bench.exposition.render(""), time_render(bench)
    for number in range(100, 30_000):
        bench.fold(StepDone(number / 100, 0.01, 0, 3, 1), TokensEmitted("r", (1, 2, 3), number / 100, 3, 2))
    many, many_s = bench.exposition.render(""), time_render(bench)
    assert len(many[0].splitlines()) == len(few[0].splitlines()) < 600
    assert many_s < 0.05
    assert many_s < 5 * few_s


def time_render(bench: Bench) -> float:
    """The shortest of ten, in seconds."""
    times: list[float] = []
    for _ in range(10):
        began_s = time.perf_counter()
        bench.exposition.render("")
        times.append(time.perf_counter() - began_s)
    return min(times)


def test_nothing_is_left_in_the_librarys_own_registry() -> None:
    Bench().scrape()
    names = {family.name for family in REGISTRY.collect()}
    assert not [name for name in names if name.startswith(("vllm", "homebase"))]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain", PLAIN),
        ("text/plain;version=0.0.4", PLAIN),
        (PROMETHEUS, OPEN),
        ("application/openmetrics-text", OPEN),
        ("Application/OpenMetrics-Text; version=1.0.0", OPEN),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", PLAIN),
        ("application/openmetrics-text;q=0", PLAIN),
        ("application/openmetrics-text;q=nan", PLAIN),
        ("application/openmetrics-text;version=never;escaping", OPEN),
        (";;,,=;q", PLAIN),
    ],
)
def test_the_form_is_the_scrapers_choice(accept: str, content_type: str) -> None:
    assert Bench().exposition.render(accept)[1] == content_type
    assert wants_openmetrics(accept) is (content_type == OPEN)
