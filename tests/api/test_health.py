from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest


@pytest.mark.parametrize(
    ("state", "model_state", "alive", "health", "ready"),
    [
        ("serving", "ready", True, 200, 200),
        ("serving", "loading", True, 200, 503),
        ("starting", "loading", False, 200, 503),
        ("serving", "failed", True, 200, 503),
        ("draining", "ready", True, 200, 503),
        ("stalled", "ready", True, 503, 503),
        ("engine_dead", "ready", False, 503, 503),
        ("serving", "ready", False, 503, 503),
    ],
)
async def test_health_is_whether_it_lives_and_ready_whether_it_would_serve(
    rig: Any, state: Any, model_state: Any, alive: bool, health: int, ready: int
) -> None:
    rig.state, rig.engine_alive = state, alive
    rig.model = msgspec.structs.replace(rig.model, state=model_state)
    for path, status in (("/health", health), ("/ready", ready)):
        answer = await rig.client.get(path)
        body = json.loads(await answer.get_data())
        assert answer.status_code == status
        assert (body["reason"] is None) == (status == 200)
        assert body["status"] == ("ok" if status == 200 else "unavailable")
        assert ("retry-after" in answer.headers) == (status == 503)


async def test_a_dead_engines_reason_is_told(rig: Any) -> None:
    rig.state, rig.engine_alive, rig.engine.dead = "engine_dead", False, "out of memory"
    body = json.loads(await (await rig.client.get("/health")).get_data())
    assert "out of memory" in body["reason"]
    assert body["state"] == "engine_dead"


async def test_a_budget_without_room_for_a_stream_is_not_ready_and_says_why(rig: Any) -> None:
    rig.model = msgspec.structs.replace(rig.model, context_limit_tokens=0, detail="Too small.")  # as the rig has it
    assert (await rig.client.get("/health")).status_code == 200
    answer = await rig.client.get("/ready")
    assert answer.status_code == 503
    assert json.loads(await answer.get_data())["reason"] == "Too small."
