"""Responses are read as their clients read them: every object and event against the official client's types."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

Ask = Callable[..., Awaitable[Any]]


def read_events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each is named as it is typed, numbered in order, and of the client's types."""
    events: list[dict[str, Any]] = []
    for frame in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, written = frame.partition("\n")
        event = json.loads(written.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        EVENT.validate_json(written.removeprefix("data: "), strict=True)
        events.append(event)
    return events


def read_response(data: bytes) -> dict[str, Any]:
    """A response object that is of the client's type."""
    Response.model_validate_json(data, strict=True)
    return json.loads(data)


@pytest.fixture(name="read_events")
def read_events_fixture() -> Callable[[bytes], list[dict[str, Any]]]:
    return read_events


@pytest.fixture(name="read_response")
def read_response_fixture() -> Callable[[bytes], dict[str, Any]]:
    return read_response


@pytest.fixture
def ask(rig: Any) -> Ask:
    """Sends a request to create a response."""

    async def post(body: dict[str, Any], **headers: str) -> Any:
        sent = {
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return await rig.client.post(PATH, data=json.dumps({"model": "nano", **body}).encode(), headers=sent)

    return post
