"""A forecast of the whole program: told before anything ran, measured once streams have, and true to the policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from tests.flows.conftest import Headless


def ask(homebase: Headless, **fields: Any) -> dict[str, Any]:
    return httpx.post(f"{homebase.url}/homebase/whatif", json=fields, timeout=10).raise_for_status().json()


def test_a_forecast_is_there_from_the_start_and_is_measured_after_a_while(headless: Callable[..., Headless]) -> None:
    homebase = headless()
    homebase.wait_ready()
    first = ask(homebase, streams=1, context_tokens=300)
    assert first["basis"] == "estimate"
    assert first["decode_tps"] > 0
    assert first["ttft_s"] > 0
    assert first["memory"]["fits"]
    assert first["replay"] is None
    assert homebase.snapshot()["model"]["bandwidth_bps"] > 0

    stream = homebase.open_stream()
    homebase.wait_until(
        "decoding was measured", lambda: ask(homebase, streams=1, context_tokens=300)["basis"] == "measured"
    )
    shown = homebase.snapshot()["engine"]["forecast"]
    assert (shown["streams"], shown["basis"]) == (2, "estimate")
    assert 0 < shown["lowest_tps"] <= shown["decode_tps"]
    row = next(row for row in homebase.snapshot()["streams"] if row["phase"] == "decode")
    httpx.post(f"{homebase.url}/v1/requests/{row['id']}/cancel", timeout=10).raise_for_status()
    assert stream.ended.wait(10)

    after = ask(homebase, policy={"policy.max_in_flight": 1}, context_tokens=300)
    assert (after["streams"], after["replay"]["arrivals"], after["replay"]["admitted"]) == (1, 1, 1)
