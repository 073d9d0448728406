"""What a snapshot says now, as metrics. Pure; what is not known is left out and never written as 0."""

from __future__ import annotations

from collections.abc import Iterator

from server.memory_plan import MemoryPlan
from server.metrics import families
from server.metrics.families import Family
from server.metrics.series import Labels
from server.snapshot import Snapshot

Reading = tuple[Family, Labels, float]


def read_gauges(snapshot: Snapshot) -> Iterator[Reading]:
    """Every gauge that the snapshot knows, and the counts that admission and upstreams keep themselves."""
    yield from _read_streams(snapshot)
    yield from _read_engine(snapshot)
    yield from _read_memory(snapshot)
    yield from _read_identity(snapshot)


def _read_streams(snapshot: Snapshot) -> Iterator[Reading]:
    phases = [stream.phase for stream in snapshot.streams if not stream.upstream]
    model, admission = (snapshot.model.id,), snapshot.admission
    yield families.REQUESTS_RUNNING, model, phases.count("prefill") + phases.count("decode")
    yield families.REQUESTS_WAITING, model, phases.count("waiting")
    yield families.IN_FLIGHT, (), admission.in_flight
    yield families.IN_FLIGHT_LIMIT, (), admission.max_in_flight
    yield families.IN_FLIGHT_PEAK, (), admission.peak_in_flight
    yield families.ADMITTED, (), admission.admitted_total
    for upstream in snapshot.upstreams:
        yield families.UPSTREAM_REQUESTS, (upstream.name,), upstream.requests_total
        yield families.UPSTREAM_FAILURES, (upstream.name,), upstream.failures_total
        yield families.UPSTREAM_IN_FLIGHT, (upstream.name,), upstream.in_flight
        yield families.UPSTREAM_UP, (upstream.name,), upstream.state != "down"


def _read_engine(snapshot: Snapshot) -> Iterator[Reading]:
    yield families.PREFILL_RATE, (), snapshot.rates.prefill_tps
    yield families.DECODE_RATE, (), snapshot.rates.decode_tps
    if snapshot.engine.step_age_s is not None:
        yield families.STEP_AGE, (), snapshot.engine.step_age_s


def _read_memory(snapshot: Snapshot) -> Iterator[Reading]:
    memory = snapshot.memory
    if memory.peak_bytes:  # MLX has been asked
        yield families.MLX_ACTIVE, (), memory.active_bytes
        yield families.MLX_CACHE, (), memory.cache_bytes
        yield families.MLX_PEAK, (), memory.peak_bytes
    yield families.RESIDENT, (), memory.resident_bytes
    yield families.MACHINE, (), memory.machine_bytes
    yield families.PROMISED, (), memory.promised_bytes
    if memory.budget_bytes:
        yield families.BUDGET, (), memory.budget_bytes
    room_bytes = MemoryPlan(memory.budget_bytes, snapshot.model.weights_bytes).room_bytes
    if room_bytes:
        yield families.KV_CACHE_USAGE, (snapshot.model.id,), memory.promised_bytes / room_bytes
    if memory.prefix_cache_budget_bytes:
        yield families.PREFIX_CACHE, (), memory.prefix_cache_bytes
        yield families.PREFIX_CACHE_BUDGET, (), memory.prefix_cache_budget_bytes
        yield families.PREFIX_CACHE_DISK, (), memory.prefix_cache_disk_bytes


def _read_identity(snapshot: Snapshot) -> Iterator[Reading]:
    model = snapshot.model
    keep_alive_s = snapshot.policy.values.get("server.keep_alive_s")
    if isinstance(keep_alive_s, int | float):
        yield families.KEEP_ALIVE, (), keep_alive_s
    for state in families.STATE.known:
        yield families.STATE, (state,), state == snapshot.state
    yield families.UPTIME, (), snapshot.uptime_s
    yield families.BUILD, (snapshot.version,), 1
    if model.state == "ready":
        yield families.MODEL_INFO, (model.id, model.architecture, model.dtype, model.quantization, model.device), 1
