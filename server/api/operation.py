"""One route and method, as the OpenAPI document tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def build_object(*required: str) -> dict[str, Any]:
    """An object of which these fields are always there."""
    return {"type": "object", "required": list(required)}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One route and method."""

    method: str
    path: str
    name: str
    """Its `operationId`."""
    summary: str
    answer: str
    """What a 200 holds, in words."""
    answer_schema: Mapping[str, Any] = msgspec.field(default_factory=build_object)
    answer_type: type[msgspec.Struct] | None = None
    """Its type where it has one, in the place of a schema."""
    content_type: str = "application/json"
    body: type[msgspec.Struct] | None = None
    expected: Mapping[str, str] = {}
    """What each field of the body may be, in words."""
    body_schema: Mapping[str, Any] | None = None
    """Of a body that no struct describes."""
    streams: bool = False
    error: str = "Error"
    """The schema of its errors."""
    parameters: tuple[str, ...] = ()
    """The names in its path."""
