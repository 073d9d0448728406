"""Which notices are worth a toast, and in which words. Refusals are not: they have a place of their own."""

from __future__ import annotations

from typing import Literal

import msgspec

from console.format import safe_text, short_id
from console.limit_words import file_name
from server.events import AnyNotice, ModelStateChanged, PolicyChanged, PolicyProblem, StreamEnded
from server.policy_store import PolicyState


class Toast(msgspec.Struct, frozen=True):
    """A short message over the screen."""

    text: str
    severity: Literal["information", "warning", "error"] = "information"
    seconds: float = 4.0


def toast_for(notice: AnyNotice, state: PolicyState) -> Toast | None:
    """The toast for a notice, None for what is told elsewhere or was caused here. `state` is that of the policy now."""
    match notice:
        case PolicyChanged() | PolicyProblem():
            return _policy_toast(notice, state)
        case ModelStateChanged(state="failed", detail=detail):
            return Toast(f"The model could not be loaded: {safe_text(detail)}", "error", 10)
        case ModelStateChanged(state="ready", detail=detail):
            return Toast(f"Model ready. {safe_text(detail)}".strip())
        case StreamEnded(outcome="failed", request_id=id, client=client, detail=detail):
            why = f": {safe_text(detail)}" if detail else "."
            return Toast(f"Stream {short_id(id)} of {safe_text(client)} failed{why}", "error", 10)
        case _:
            return None


def _policy_toast(notice: PolicyChanged | PolicyProblem, state: PolicyState) -> Toast | None:
    file = safe_text(file_name(state))
    match notice:
        case PolicyChanged(origin="file", changes=changes):
            return Toast(f"{file} changed outside, in force: {_changes(changes)}", seconds=6)
        case PolicyChanged(origin="api", changes=changes, by=by):
            return Toast(f"{file} changed over HTTP by {safe_text(by)}, in force: {_changes(changes)}", seconds=6)
        case PolicyProblem(message=""):
            return Toast(f"{file} is usable again and in force.")
        case PolicyProblem(message=message) if state.exists:
            return Toast(f"{file} is not in force, the running policy stays: {safe_text(message)}", "warning", 8)
        case PolicyProblem(message=message):
            return Toast(safe_text(message), "warning", 8)
        case _:
            return None


def _changes(changes: tuple[tuple[str, str, str], ...]) -> str:
    return safe_text(", ".join(f"{key.rpartition('.')[2]} {old} → {new}" for key, old, new in changes))
