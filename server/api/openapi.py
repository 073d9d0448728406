"""GET /openapi.json: every route, with the very types that requests are decoded into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from quart import Quart, Response

from server.api.failures import OPENAI_PATHS
from server.api.operation import Operation
from server.api.operations import OPERATIONS
from server.api.services import Services

TITLE = "homebase-console"
_REF = "#/components/schemas/{name}"


def add_openapi(app: Quart, services: Services) -> None:
    """Register the route. The document is written at the first request and kept."""
    written: list[bytes] = []

    async def show_openapi() -> Response:
        if not written:
            written.append(msgspec.json.encode(build_openapi(services.build_snapshot().version)))
        return Response(written[0], content_type="application/json")

    app.add_url_rule("/openapi.json", view_func=show_openapi, methods=["GET"])


def build_openapi(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    types = {kind: None for each in OPERATIONS for kind in (each.body, each.answer_type) if kind is not None}
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    refs = dict(zip(types, schemas, strict=True))
    for operation in OPERATIONS:
        if operation.body is not None:
            name = refs[operation.body]["$ref"].rpartition("/")[2]
            _describe_fields(components[name], operation.expected)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _build_operation(operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": {**components, **_ERRORS}, "securitySchemes": _SECURITY},
        "security": [{}, {"bearer": []}, {"apiKey": []}],
    }


def _describe_fields(schema: dict[str, Any], expected: Mapping[str, str]) -> None:
    """What each field may be, in the words that a client is told when it is not that."""
    for name, field in schema.get("properties", {}).items():
        if name in expected:
            field.setdefault("description", expected[name])


def _build_operation(operation: Operation, refs: Mapping[Any, Any]) -> dict[str, Any]:
    # The guard before every route refuses in the dialect's shape; only the probes' own 503 has another.
    refused = _refer("MessagesError") if operation.error == "MessagesError" else _build_error(operation.path)
    error = _refer(operation.error) if operation.error == "Unavailable" else refused
    built: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.name,
        "responses": {
            "200": {"description": operation.answer, "content": _build_content(operation, refs)},
            "4XX": {"description": "The request cannot be answered, now or ever.", "content": _json(refused)},
            "5XX": {"description": "The server or its engine cannot answer.", "content": _json(error)},
        },
    }
    if operation.parameters:
        built["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in operation.parameters
        ]
    body = operation.body_schema if operation.body is None else refs[operation.body]
    if body is not None:
        built["requestBody"] = {"required": True, "content": _json(body)}
    return built


def _build_error(path: str) -> dict[str, Any]:
    """OpenAI's error; where both dialects come, it is Anthropic's for who sends `anthropic-version`."""
    ours = _refer("Error")
    return ours if path.startswith(OPENAI_PATHS) else {"anyOf": [ours, _refer("MessagesError")]}


def _refer(name: str) -> dict[str, Any]:
    return {"$ref": _REF.format(name=name)}


def _build_content(operation: Operation, refs: Mapping[Any, Any]) -> dict[str, Any]:
    schema = operation.answer_schema if operation.answer_type is None else refs[operation.answer_type]
    content: dict[str, Any] = {operation.content_type: {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


_ERRORS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string", "description": "One sentence for people."},
                    "type": {"type": "string", "description": "The coarse class."},
                    "param": {"type": ["string", "null"], "description": "The field at fault."},
                    "code": {"type": "string", "description": "Stable; docs/api.md lists them."},
                },
            }
        },
    },
    "Unavailable": {
        "type": "object",
        "required": ["status", "reason", "state"],
        "properties": {"status": {"const": "unavailable"}, "reason": {"type": "string"}, "state": {"type": "string"}},
    },
    "MessagesError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}

_SECURITY: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Wanted when the operator has set a key."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key, as Anthropic's."},
}
