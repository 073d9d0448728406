"""The OpenAPI document says what is there, and nothing else."""

from __future__ import annotations

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
