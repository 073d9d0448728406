"""The OpenAPI document says what is there, and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema_rs
import pytest

from server.api.openapi import build_openapi
from server.api.operations import OPERATIONS


def routes_of(app: Any) -> set[tuple[str, str]]:
    """Each route and method as the document writes them."""
    rules = ((re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), rule.methods) for rule in app.url_map.iter_rules())
    return {(path, method) for path, methods in rules for method in methods - {"HEAD", "OPTIONS"}}


def test_every_route_is_told_and_every_told_route_is_there(rig: Any) -> None:
    assert {(operation.path, operation.method) for operation in OPERATIONS} == routes_of(rig.app)


async def test_the_document_is_served_and_its_references_lead_somewhere(rig: Any) -> None:
    answer = await rig.client.get("/openapi.json")
    assert answer.status_code == 200
    text = await answer.get_data(as_text=True)
    document = json.loads(text)
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == rig.build_snapshot().version
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert references
    assert references == references & document["components"]["schemas"].keys()


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_a_probe_that_the_guard_refuses_is_answered_as_documented(rig: Any, path: str) -> None:
    answer = await rig.client.get(path, headers={"host": "evil.example"})
    assert answer.status_code == 403
    document = build_openapi("1")
    schema = document["paths"][path]["get"]["responses"]["4XX"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.validator_for({**schema, "components": document["components"]})
    validator.validate(json.loads(await answer.get_data()))


def test_a_body_has_each_field_with_its_range_and_its_words() -> None:
    schemas = build_openapi("1")["components"]["schemas"]
    chat = schemas["ChatBody"]
    assert chat["required"] == ["messages"]
    top_p = chat["properties"]["top_p"]
    assert top_p["description"] == "a number above 0 and at most 1"
    assert {"type": "number", "exclusiveMinimum": 0, "maximum": 1} in top_p["anyOf"]
    undescribed = [
        (operation.name, name)
        for operation in OPERATIONS
        if operation.body is not None
        for name, field in schemas[operation.body.__name__]["properties"].items()
        if not field.get("description")
    ]
    assert undescribed == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/homebase/snapshot"),
        ("GET", "/homebase/policy"),
        ("POST", "/homebase/drain"),
        ("POST", "/homebase/resume"),
        ("GET", "/homebase/sessions"),
    ],
)
async def test_what_the_operator_is_answered_is_of_the_documented_type(
    rig: Any, chat_body: Any, method: str, path: str
) -> None:
    task = asyncio.create_task(rig.post(chat_body("hello")))
    await rig.until(lambda: rig.engine.open)
    answer = await rig.client.open(path, method=method)
    document = build_openapi("1")
    content = document["paths"][path][method.lower()]["responses"]["200"]["content"]["application/json"]["schema"]
    told = json.loads(await answer.get_data())
    validator = jsonschema_rs.validator_for({**content, "components": document["components"]})
    validator.validate(told)
    assert not validator.is_valid({name: value for name, value in told.items() if name != next(iter(told))})
    rig.engine.end(rig.engine.only, "stop")
    await task


def test_the_body_of_a_policy_edit_is_told_limit_by_limit() -> None:
    document = build_openapi("1")
    schema = document["paths"]["/homebase/policy"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema_rs.validator_for(schema)
    for body in (
        {"policy.max_in_flight": 3, "server.keep_alive_s": 4},
        {"policy.refusal_status": "auto", "server.allowed_origins": ["http://localhost:1"], "server.api_key": ""},
    ):
        assert validator.is_valid(body)
    for body in (
        {},
        {"policy.max_in_flight": 65},
        {"policy.max_in_flight": "3"},
        {"policy.max": 3},
        {"server.keys": []},
    ):
        assert not validator.is_valid(body)
