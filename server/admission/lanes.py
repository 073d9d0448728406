"""Limits of a lane and of a client: depth, children of one parent, children in all, a client's own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from server.admission.clients import find_client_policy
from server.admission.place import Place
from server.policy import AdmissionPolicy, ClientPolicy

LaneCode = Literal["in_flight_full", "child_lane_full", "depth_exceeded"]


class Taken(msgspec.Struct, frozen=True):
    """A limit that says no, and its use."""

    code: LaneCode
    key: str
    """Dotted key of the limit."""
    limit: int
    used: int


def find_lane_limit(
    policy: AdmissionPolicy, own: ClientPolicy | None, held: Sequence[Place], asked: Place
) -> Taken | None:
    """The limit of one's depth, client or lane that says no, None when none does.

    `own` is what the operator set for this client. Lanes other than the child's have no limit of their own.
    """
    own = own or ClientPolicy()
    found = _check_depth(policy, own, asked) if asked.lane == "child" else None
    if found is None and own.max_in_flight is not None:
        found = _check_client(policy, own, own.max_in_flight, held)
    if found is None and asked.lane == "child":
        found = _check_children(policy, own, held, asked)
    return found


def _check_depth(policy: AdmissionPolicy, own: ClientPolicy, asked: Place) -> Taken | None:
    limit, key = policy.subagents.max_depth, "policy.subagents.max_depth"
    if own.max_depth is not None:
        limit, key = own.max_depth, _own_key(policy, own, "max_depth")
    return Taken("depth_exceeded", key, limit, asked.depth) if asked.depth > limit else None


def _check_client(policy: AdmissionPolicy, own: ClientPolicy, limit: int, held: Sequence[Place]) -> Taken | None:
    used = sum(find_client_policy(policy, each.key, each.client) is own for each in held)
    return Taken("in_flight_full", _own_key(policy, own, "max_in_flight"), limit, used) if used >= limit else None


def _check_children(policy: AdmissionPolicy, own: ClientPolicy, held: Sequence[Place], asked: Place) -> Taken | None:
    children = [each for each in held if each.lane == "child"]
    limit, key = policy.subagents.max_concurrent, "policy.subagents.max_concurrent"
    if own.max_concurrent is not None:
        limit, key = own.max_concurrent, _own_key(policy, own, "max_concurrent")
    siblings = sum(each.parent_session == asked.parent_session for each in children)
    if siblings >= limit and (asked.parent_session is not None or not limit):
        return Taken("child_lane_full", key, limit, siblings)
    if len(children) >= policy.subagents.sampling_limit:
        key = "policy.subagents.sampling_limit"
        return Taken("child_lane_full", key, policy.subagents.sampling_limit, len(children))
    return _check_parents_place(policy, held, asked)


def _check_parents_place(policy: AdmissionPolicy, held: Sequence[Place], asked: Place) -> Taken | None:
    """A parent that is not in flight now needs a place to go on; the last one that is free is kept for it."""
    is_parent_here = any(each.session == asked.parent_session for each in held)
    most = policy.max_in_flight
    if most < 2 or is_parent_here or len(held) != most - 1:
        return None
    return Taken("child_lane_full", "policy.max_in_flight", most, len(held))


def _own_key(policy: AdmissionPolicy, own: ClientPolicy, name: str) -> str:
    table = next((name for name, each in policy.clients.items() if each is own), "")
    return f"policy.clients.{table}.{name}"
