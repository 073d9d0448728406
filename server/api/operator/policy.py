"""GET and PUT /homebase/policy: every limit with its value, range and source; and new values for some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from quart import Quart, Response, request

from server.api.body import BoundedBody, read_body
from server.api.decoding import decode_object
from server.api.failures import build_failure
from server.api.operator.caller import name_caller
from server.api.services import Services
from server.errors import BodyTooLarge, InvalidRequest, PolicyConflict, PolicyInvalid
from server.policy import Limit, LimitValue, Policy, find_limit, list_limits, read_limit
from server.policy_file.document import DOTS
from server.policy_store import PolicySave, PolicyState, PolicyStore

MOST_BYTES = 256 * 1024
"""Of a body with new limits, which is decoded on the loop. All limits with their longest values are half of it."""


class LimitView(msgspec.Struct, frozen=True):
    """One limit of homebase.toml."""

    key: str
    value: LimitValue
    """In force; a secret that is set is dots."""
    default: LimitValue
    source: str
    """Where the value comes from: `homebase.toml:12`, a flag of this run, or `default`."""
    effect: str
    """When a new value is felt."""
    unit: str
    kind: str
    allowed: str
    """The range in words."""
    minimum: float | None
    maximum: float | None
    choices: tuple[LimitValue, ...]
    secret: bool
    description: str


class PolicyReport(msgspec.Struct, frozen=True):
    """The policy in force, and its file."""

    path: str
    exists: bool
    etag: str
    """Of the file; empty when there is none. The header ETag has it in quotes."""
    problem: str | None
    """Why the file is not in force, None when it is."""
    warnings: tuple[str, ...]
    limits: tuple[LimitView, ...]


class SavedLimit(msgspec.Struct, frozen=True):
    """One key of a PUT."""

    key: str
    old: LimitValue
    new: LimitValue
    """In the file; both are dots for a secret that is set."""
    in_force: LimitValue
    """Another one where a flag of this run goes before the file."""
    effect: str
    """When it is felt."""


class PolicySaved(msgspec.Struct, frozen=True):
    """What a PUT has done."""

    etag: str
    changes: tuple[SavedLimit, ...]
    notes: tuple[str, ...]
    """Sentences on flags of this run that go before the file."""


def add_policy(app: Quart, services: Services) -> None:
    """Register the routes."""

    async def show_policy() -> Response:
        report = build_report(services.controls.store().state)
        return _answer(report, report.etag)

    async def put_policy() -> Response:
        body = await read_body(cast("BoundedBody", request.body))
        if len(body) > MOST_BYTES:
            raise BodyTooLarge(MOST_BYTES, len(body))
        document = decode_object(body)
        changes, store, by = read_changes(document), services.controls.store(), name_caller()
        etag = read_etag(request.headers.get("if-match"))
        try:
            # On a thread: a slow disk holds up neither the streams nor the screen.
            save = await asyncio.to_thread(store.put, changes, etag, by)
        except PolicyConflict as conflict:
            return _answer_conflict(conflict, changes, store)
        return _answer(build_saved(changes, save), save.state.etag)

    app.add_url_rule("/homebase/policy", endpoint="show_policy", view_func=show_policy, methods=["GET"])
    app.add_url_rule("/homebase/policy", endpoint="put_policy", view_func=put_policy, methods=["PUT"])


def build_report(state: PolicyState) -> PolicyReport:
    """All limits with what is in force."""
    limits = tuple(_view(limit, state) for limit in list_limits())
    return PolicyReport(state.path, state.exists, state.etag, state.problem, state.warnings, limits)


def build_saved(changes: Mapping[str, LimitValue], save: PolicySave) -> PolicySaved:
    """What was saved, key by key."""
    saved = tuple(
        SavedLimit(
            key=key,
            old=_show(key, save.before),
            new=_show(key, save.after),
            in_force=_show(key, save.state.policy),
            effect=find_limit(key).effect,
        )
        for key in changes
    )
    return PolicySaved(save.state.etag, saved, save.notes)


def read_changes(document: Mapping[str, Any]) -> dict[str, LimitValue]:
    """The keys and values of a body, lists as the policy has them; the store judges the rest. Raises PolicyInvalid."""
    if not document:
        raise InvalidRequest('Nothing is to be changed; send keys and values like {"policy.max_in_flight": 3}.')
    limits = {limit.key: limit for limit in list_limits()}
    for key, value in document.items():
        limit = limits.get(key)
        if limit is not None and limit.kind == "table":
            raise PolicyInvalid(f"{key} is a table of your own names; edit it in the file, which is noticed.", key=key)
        if limit is not None and value is None:
            raise PolicyInvalid(f"{key}: null is not allowed; allowed: {limit.allowed}.", key=key)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}


def read_etag(if_match: str | None) -> str | None:
    """The etag that If-Match names; None without one, and for any file (`*`). Raises InvalidRequest."""
    given = (if_match or "").strip()
    if given in ("", "*"):
        return None
    if len(given) < 2 or not given.startswith('"') or not given.endswith('"') or '"' in given[1:-1]:
        raise InvalidRequest("If-Match must be one ETag in quotes, as GET /homebase/policy gives it, or *.")
    return given[1:-1]


def _view(limit: Limit, state: PolicyState) -> LimitView:
    return LimitView(
        key=limit.key,
        value=_show(limit.key, state.policy),
        default=limit.default,
        source=state.origins[limit.key],
        effect=limit.effect,
        unit=limit.unit,
        kind=limit.kind,
        allowed=limit.allowed,
        minimum=limit.minimum,
        maximum=limit.maximum,
        choices=limit.choices,
        secret=limit.secret,
        description=limit.description,
    )


def _show(key: str, policy: Policy) -> LimitValue:
    value = read_limit(policy, key)
    return DOTS if value and find_limit(key).secret else value


def _answer(told: msgspec.Struct, etag: str) -> Response:
    return Response(msgspec.json.encode(told), headers={"etag": f'"{etag}"'}, content_type="application/json")


def _answer_conflict(conflict: PolicyConflict, changes: Mapping[str, LimitValue], store: PolicyStore) -> Response:
    """412, with what differs beside the error: each key as it is now, and as it was asked for where it was."""
    state, failure = store.state, build_failure(conflict)
    differs = [
        {"key": key, "now": _show(key, state.policy)} | ({"asked": _hide(key, changes[key])} if key in changes else {})
        for key in conflict.keys
    ]
    body = msgspec.json.decode(failure.body) | {"differs": differs, "etag": state.etag}
    headers = failure.headers | {"etag": f'"{state.etag}"'}
    return Response(msgspec.json.encode(body), status=failure.status, headers=headers)


def _hide(key: str, value: LimitValue) -> LimitValue:
    return DOTS if value and find_limit(key).secret else value
