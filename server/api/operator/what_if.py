"""POST /homebase/whatif: what other limits would mean, before anybody sets them. Changes nothing."""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta
from quart import Quart, Response, request

from server.api.body import BoundedBody, read_body
from server.api.decoding import convert, decode_object, log_unknown
from server.api.services import Services
from server.errors import InvalidRequest
from server.forecast.what_if import Situation
from server.policy import LimitValue, Policy, apply_changes, find_limit, validate_policy

MOST_STREAMS = 64
MOST_TOKENS = 16_777_216
USUAL_CONTEXT_TOKENS = 4096
"""Where a request leaves it open: what an agent's first request has."""

PATH = "/homebase/whatif"

Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]


class WhatIfBody(msgspec.Struct, frozen=True):
    """The body: limits by their dotted keys, and the streams to imagine."""

    policy: dict[str, Any] = {}
    streams: Annotated[int, Meta(ge=1, le=MOST_STREAMS)] | None = None
    """As many as max_in_flight where left open."""
    context_tokens: Tokens | None = None
    prompt_tokens: Tokens | None = None
    """As long as context_tokens where left open."""


EXPECTED = {
    "policy": 'an object of limits, like {"policy.max_in_flight": 3}',
    "streams": f"a whole number from 1 to {MOST_STREAMS}",
    "context_tokens": f"a whole number from 1 to {MOST_TOKENS:,}",
    "prompt_tokens": f"a whole number from 1 to {MOST_TOKENS:,}",
}


def add_what_if(app: Quart, services: Services) -> None:
    """Register the route."""

    async def answer() -> Response:
        document = decode_object(
            await read_body(cast("BoundedBody", request.body)), request.headers.get("content-type", "")
        )
        given = convert(document, WhatIfBody, EXPECTED)
        log_unknown(document, WhatIfBody.__struct_fields__)
        policy = edit_policy(services.read_policy(), given.policy)
        found = await services.what_if(policy, build_situation(policy, given))
        return Response(msgspec.json.encode(found), content_type="application/json")

    app.add_url_rule(PATH, view_func=answer, methods=["POST"])


def edit_policy(policy: Policy, changes: dict[str, Any]) -> Policy:
    """The policy in force with other values of some limits. Raises InvalidRequest and PolicyInvalid."""
    for key in changes:
        try:
            find_limit(key)
        except KeyError:
            raise InvalidRequest(
                f"`policy` has no limit {key[:80]!a}; GET /homebase/snapshot lists them at policy.values.",
                param="policy",
            ) from None
    values = {key: _freeze(key, value) for key, value in changes.items()}
    return validate_policy(apply_changes(msgspec.to_builtins(policy), values))


def build_situation(policy: Policy, given: WhatIfBody) -> Situation:
    """What is to be imagined, with what was left open."""
    context = given.context_tokens or USUAL_CONTEXT_TOKENS
    return Situation(given.streams or policy.policy.max_in_flight, context, given.prompt_tokens or context)


def _freeze(key: str, value: Any) -> LimitValue:
    """A value of JSON as the policy has it. Raises InvalidRequest for a list of anything but texts."""
    if not isinstance(value, list):
        return value
    items = cast("list[Any]", value)
    if not all(isinstance(item, str) for item in items):
        raise InvalidRequest(f"`policy` sets {key} to a list with something else in it than texts.", param="policy")
    return tuple(items)
