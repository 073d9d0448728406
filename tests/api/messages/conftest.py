"""How tests of this dialect ask."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

PATH = "/v1/messages"

Post = Callable[..., Awaitable[Any]]


@pytest.fixture
def post(rig: Any) -> Post:
    """Send a Messages request with these fields and read the whole answer."""

    async def send(path: str = PATH, headers: Mapping[str, str] | None = None, **fields: Any) -> Any:
        data = json.dumps(messages_body(**fields)).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        return await rig.client.post(path, data=data, headers=sent)

    return send


def messages_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "nano", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **fields}
