from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest


async def get(rig: Any, path: str, **headers: str) -> Any:
    return json.loads(await (await rig.client.get(path, headers=headers)).get_data())


async def test_the_list_has_the_served_model_with_its_context_limit(rig: Any) -> None:
    listed = await get(rig, "/v1/models")
    created = listed["data"][0].pop("created")
    assert created > 1_700_000_000
    assert listed == {
        "object": "list",
        "data": [
            {
                "id": "org/nano",
                "object": "model",
                "owned_by": "homebase-console",
                "context_length": 4096,
                "max_model_len": 4096,
                "max_output_tokens": 4095,
                "state": "ready",
            }
        ],
    }


async def test_the_limit_is_the_one_in_force_now(rig: Any) -> None:
    rig.set_policy(policy__max_context_tokens=1000)
    assert (await get(rig, "/v1/models"))["data"][0]["context_length"] == 1000
    rig.set_policy(policy__max_context_tokens=0, policy__max_in_flight=5)
    assert (await get(rig, "/v1/models/nano"))["max_model_len"] == 4096


@pytest.mark.parametrize("name", ["org/nano", "nano", "org%2Fnano"])
async def test_one_model_is_found_by_its_names(rig: Any, name: str) -> None:
    assert (await get(rig, f"/v1/models/{name}"))["id"] == "org/nano"


async def test_an_unknown_model_is_a_404_that_lists_what_there_is(rig: Any) -> None:
    answer = await rig.client.get("/v1/models/a/b/c")
    assert answer.status_code == 404
    assert json.loads(await answer.get_data())["error"] == {
        "message": "The model 'a/b/c' is not served here; available: 'org/nano'.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


async def test_a_limit_that_is_not_known_yet_is_null(rig: Any) -> None:
    rig.model = msgspec.structs.replace(rig.model, state="loading", context_limit_tokens=0)
    model = await get(rig, "/v1/models/nano")
    assert (model["context_length"], model["max_model_len"], model["state"]) == (None, None, "loading")


async def test_anthropics_clients_get_the_list_and_the_model_in_their_form(rig: Any) -> None:
    version = {"anthropic-version": "2023-06-01"}
    listed = await get(rig, "/v1/models?limit=1000", **version)
    created = datetime.fromisoformat(listed["data"][0].pop("created_at"))
    assert created.timestamp() > 1_700_000_000
    model = {
        "type": "model",
        "id": "org/nano",
        "display_name": "org/nano",
        "max_input_tokens": 4095,
        "max_tokens": 4095,
        "owned_by": "homebase-console",
        "state": "ready",
    }
    assert listed == {"data": [model], "first_id": "org/nano", "last_id": "org/nano", "has_more": False}
    assert {**model, **await get(rig, "/v1/models/nano", **version)}.keys() == {*model, "created_at"}


async def test_anthropics_clients_get_its_errors_in_their_form(rig: Any) -> None:
    told = await get(rig, "/v1/models/other", **{"anthropic-version": "2023-06-01"})
    assert (told["type"], told["error"]["type"]) == ("error", "not_found_error")
    assert told["error"]["details"]["error_code"] == "model_not_found"
