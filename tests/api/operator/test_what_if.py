from __future__ import annotations

import json
from typing import Any

import pytest

from server.api.operator.what_if import WhatIfBody, build_situation, edit_policy
from server.errors import EngineDead
from server.forecast.what_if import Situation
from server.policy import Policy

PATH = "/homebase/whatif"


def test_what_is_left_open_follows_the_edited_policy() -> None:
    policy = edit_policy(Policy(), {"policy.max_in_flight": 5, "server.allowed_origins": []})
    assert build_situation(policy, WhatIfBody()) == Situation(5, 4096, 4096)
    assert build_situation(policy, WhatIfBody(streams=2, context_tokens=9)) == Situation(2, 9, 9)
    assert build_situation(policy, WhatIfBody(context_tokens=9, prompt_tokens=3)) == Situation(5, 9, 3)


def test_an_edit_changes_only_what_it_names() -> None:
    policy = edit_policy(Policy(), {"engine.mtp": "off"})
    assert policy.engine.mtp == "off"
    assert policy.policy == Policy().policy


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"policy": {"policy.max_in_flight": 65}}, "policy_invalid", "1 to 64"),
        ({"policy": {"policy.max_in_fligth": 3}}, "invalid_request", "no limit 'policy.max_in_fligth'"),
        ({"policy": {"policy.clients": [1]}}, "invalid_request", "something else in it than texts"),
        ({"policy": {"aliases": ["no row"]}}, "policy_invalid", "edited in the file"),
        ({"policy": {"engine.mtp": {"deep": [None]}}}, "policy_invalid", "allowed"),
        ({"policy": {"policy.max_in_flight": None}}, "policy_invalid", "1 to 64"),
        ({"policy": 3}, "invalid_request", "an object of limits"),
        ({"streams": 0}, "invalid_request", "from 1 to 64"),
        ({"context_tokens": "many"}, "invalid_request", "a whole number"),
        ([], "invalid_request", "a JSON object"),
    ],
)
async def test_what_cannot_be_imagined_is_told_in_a_sentence(rig: Any, body: Any, code: str, words: str) -> None:
    answer = await rig.post(json.dumps(body).encode(), path=PATH)
    error = (await answer.get_json())["error"]
    assert answer.status_code == 400
    assert error["code"] == code
    assert words in error["message"]


async def test_the_forecast_is_of_the_edited_policy_and_comes_as_json(rig: Any) -> None:
    asked: list[tuple[Policy, Situation]] = []

    async def forecast(policy: Policy, situation: Situation) -> dict[str, object]:
        asked.append((policy, situation))
        return {"decode_tps": 12.5}

    rig.what_if = forecast
    answer = await rig.post({"policy": {"policy.max_in_flight": 9}, "context_tokens": 500}, path=PATH)
    assert (answer.status_code, await answer.get_json()) == (200, {"decode_tps": 12.5})
    ((policy, situation),) = asked
    assert policy.policy.max_in_flight == 9
    assert situation == Situation(9, 500, 500)
    assert rig.policy.policy.max_in_flight == Policy().policy.max_in_flight


async def test_without_an_engine_there_is_no_forecast(rig: Any) -> None:
    answer = await rig.post({}, path=PATH)
    assert answer.status_code == 500
    assert (await answer.get_json())["error"]["code"] == EngineDead.code
