"""The operator's routes, for the table of all routes."""

from __future__ import annotations

from typing import Any

from server.api.operation import Operation, build_object
from server.api.operator.control import Admitting
from server.api.operator.history import HistoryList
from server.api.operator.policy import PolicyReport, PolicySaved
from server.api.operator.sessions import SessionList
from server.policy import Limit, list_limits
from server.snapshot import Snapshot


def build_changes_schema() -> dict[str, Any]:
    """What a PUT of the policy may hold: each limit by its dotted key, in its range."""
    return {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "properties": {limit.key: _describe(limit) for limit in list_limits() if limit.kind != "table"},
    }


def _describe(limit: Limit) -> dict[str, Any]:
    return _TYPES[limit.kind] | {
        "description": f"{limit.description} Allowed: {limit.allowed}.",
        **({"enum": list(limit.choices)} if limit.choices else {}),
        **({"minimum": limit.minimum} if limit.minimum is not None else {}),
        **({"maximum": limit.maximum} if limit.maximum is not None else {}),
    }


_TYPES: dict[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "bool": {"type": "boolean"},
    "choice": {},
    "list": {"type": "array", "items": {"type": "string"}},
}

OPERATOR_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/homebase/snapshot",
        name="showSnapshot",
        summary="All that the console shows.",
        answer="The snapshot.",
        answer_type=Snapshot,
    ),
    Operation(
        method="GET",
        path="/homebase/events",
        name="followEvents",
        summary="Notices as they come, and the snapshot whenever something has changed.",
        answer="A stream of events: snapshot, refused, stream_ended, policy_changed, policy_problem, model_changed, "
        "log and gap. Goes on after the id in Last-Event-ID.",
        answer_schema={"type": "string"},
        content_type="text/event-stream",
    ),
    Operation(
        method="GET",
        path="/homebase/policy",
        name="showPolicy",
        summary="Every limit: its value, range, source and when a new one is felt.",
        answer="The policy; the header ETag names its file's version.",
        answer_type=PolicyReport,
    ),
    Operation(
        method="PUT",
        path="/homebase/policy",
        name="changePolicy",
        summary="Puts limits into homebase.toml and in force. With If-Match only into that version of the file.",
        answer="Each key with its old and new value.",
        answer_type=PolicySaved,
        body_schema=build_changes_schema(),
    ),
    Operation(
        method="POST",
        path="/homebase/streams/{stream_id}/stop",
        name="stopStream",
        summary="Ends a stream, whoever's it is, and tells its client.",
        answer="What was ended, and in which phase.",
        answer_schema=build_object("id", "object", "phase", "prompt_tokens", "completion_tokens"),
        parameters=("stream_id",),
    ),
    Operation(
        method="POST",
        path="/homebase/drain",
        name="drain",
        summary="Admits nothing new; what is in flight goes on.",
        answer="Where that leaves the server.",
        answer_type=Admitting,
    ),
    Operation(
        method="POST",
        path="/homebase/resume",
        name="resume",
        summary="Admits again.",
        answer="Where that leaves the server.",
        answer_type=Admitting,
    ),
    Operation(
        method="GET",
        path="/homebase/sessions",
        name="listSessions",
        summary="The agents' conversations that are known now.",
        answer="The sessions.",
        answer_type=SessionList,
    ),
    Operation(
        method="GET",
        path="/homebase/history",
        name="showHistory",
        summary="Requests and refusals of the past, oldest first: `since` (1h) and `limit` (100) choose which.",
        answer="The requests, without any text of theirs.",
        answer_type=HistoryList,
    ),
)
