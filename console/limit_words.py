"""What the console says about a limit: its value, where it comes from, what a change does and what a save did.

Pure: text in, text out; every sentence is about facts that are handed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from console.editing import LIMITS, Draft, short_name, write_text
from server.policy import Effect, Limit, LimitValue
from server.policy_store import PolicyState
from server.snapshot import Snapshot

DOTS = "••••••••"
"""Stands for a secret that is set, whatever its length."""

"""Said of every limit that is not acted upon yet."""

_LOOPBACK = ("127.", "localhost", "::1")


def show_value(limit: Limit, value: LimitValue) -> str:
    """A value for reading: counted things get separators, secrets dots, and nothing a word."""
    if limit.secret:
        return DOTS if value else "not set"
    if value in ("", ()):
        return "none" if limit.kind in ("list", "table") else "empty"
    if limit.unit and isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return write_text(value)


def show_measure(limit: Limit, value: LimitValue) -> str:
    """A value with its unit: `1 stream`, `256 tokens`."""
    shown = show_value(limit, value)
    return f"{shown} {unit_of(limit, value)}" if limit.unit else shown


def unit_of(limit: Limit, value: LimitValue) -> str:
    """The unit in the number that the value asks for."""
    return _SINGULAR.get(limit.unit, limit.unit) if value == 1 else limit.unit


_SINGULAR = {"streams": "stream", "children": "child", "levels": "level", "tokens": "token"}


def show_text(limit: Limit, text: str) -> str:
    """A typed text for reading, exactly as typed; secrets are dots."""
    return DOTS if limit.secret and text else text or "nothing"


def explain_allowed(limit: Limit) -> str:
    """The range with its unit."""
    return f"{limit.allowed} {limit.unit}".rstrip()


def explain_origin(origin: str) -> str:
    """Where the value in force comes from, in words."""
    if origin.startswith("--"):
        return f"{origin}, for this run only"
    if origin == "default":
        return "default, not in the file"
    file, _, line = origin.rpartition(":")
    return f"{file} line {line}" if file and line.isdecimal() else origin


def short_origin(origin: str) -> str:
    """Where the value comes from, for a narrow column."""
    _, colon, line = origin.rpartition(":")
    return f"line {line}" if colon and line.isdecimal() else origin


def explain_running(key: str, snapshot: Snapshot) -> str | None:
    """What this run does, for a limit whose value in force waits for the next start; None when they agree."""
    running: dict[str, LimitValue] = {
        "server.host": snapshot.host,
        "server.port": snapshot.port,
        "model.path": snapshot.model.path,
    }
    policy = snapshot.policy.values.get(key)
    if key not in running or policy is None or running[key] == policy:
        return None
    return f"this run goes on with {write_text(running[key])} until it is started again"


def explain_consequence(key: str, value: LimitValue, snapshot: Snapshot) -> str | None:
    """What a new value does to what is running, when an operator should know before saving."""
    match key, value:
        case "policy.max_in_flight", int() if value < snapshot.admission.in_flight:
            return f"{snapshot.admission.in_flight} in flight, limit {value}: none is cut; drains to {value}."
        case "policy.max_context_tokens", int():
            return _explain_context(value, snapshot)
        case "server.host", str() if not value.startswith(_LOOPBACK):
            return "Other machines will be answered; a key must be set as well."
        case "server.allow_unauthenticated", True:
            return "Where no key is set, whoever reaches the port is answered."
        case "server.port", int() if value != snapshot.port:
            return f"Clients must be pointed at port {value} after the next start."
        case _:
            return None


def _explain_context(value: int, snapshot: Snapshot) -> str | None:
    own = snapshot.model.context_limit_tokens
    if own and value > own:
        return f"The model itself ends at {own:,} tokens; that stays the limit."
    asked = value or own
    over = sum(1 for stream in snapshot.streams if stream.phase != "finished" and stream.context_tokens > asked)
    if asked and over:
        return (
            f"{over} in flight {'is' if over == 1 else 'are'} longer: none is cut; new requests are held to {asked:,}."
        )
    return None


def explain_saved(changes: Mapping[str, LimitValue], state: PolicyState) -> str:
    """What a finished save did, told from the state that it returned and nothing else."""
    file = file_name(state)
    if len(changes) == 1:
        key, value = next(iter(changes.items()))
        return f"{short_name(key)} = {show_value(LIMITS[key], value)} saved to {file}{_explain_force(key, state)}"
    by_force: dict[str, list[str]] = {}
    for key in changes:
        by_force.setdefault(_name_force(key, state), []).append(short_name(key))
    parts = "; ".join(f"{', '.join(names)} {force}" for force, names in by_force.items())
    return f"{len(changes)} limits saved to {file}: {parts}"


def _explain_force(key: str, state: PolicyState) -> str:
    flag = state.origins.get(key, "")
    if flag.startswith("--"):
        return f"; {flag} of this run stays in force"
    return f", {_name_force(key, state)}"


def _name_force(key: str, state: PolicyState) -> str:
    flag = state.origins.get(key, "")
    if flag.startswith("--"):
        return f"behind {flag} of this run"
    return "in force at the next start" if LIMITS[key].effect is Effect.NEXT_START else "in force now"


def explain_differences(differences: Sequence[tuple[str, LimitValue, LimitValue]]) -> str:
    """`max_in_flight 2 → 1, ...`, the first three."""
    shown = [f"{short_name(key)} {show_change(key, old, new)}" for key, old, new in differences[:3]]
    more = [f"{len(differences) - 3} more"] if len(differences) > 3 else []
    return ", ".join(shown + more)


def show_change(key: str, old: LimitValue, new: LimitValue) -> str:
    """`2 → 1`, secrets as dots."""
    return f"{show_value(LIMITS[key], old)} → {show_value(LIMITS[key], new)}"


def explain_drafts(drafts: Sequence[Draft]) -> str:
    """`max_in_flight 2 → 1, ...` of unsaved edits, as typed."""
    return ", ".join(
        f"{short_name(d.key)} {show_value(LIMITS[d.key], d.base)} → {show_text(LIMITS[d.key], d.text)}" for d in drafts
    )


def file_name(state: PolicyState) -> str:
    """The policy file's own name."""
    return PurePath(state.path).name or "homebase.toml"


_SECRETS = "|".join(re.escape(short_name(limit.key)) for limit in LIMITS.values() if limit.secret)
_SECRET_TEXT = re.compile(
    rf"""(\b(?:{_SECRETS})["']?\s*=\s*)(?!["']•)(?:\"{{3}}.*?\"{{3}}|'{{3}}.*?'{{3}}|"(?:\\.|[^"\\])+"|'[^']+')"""
)


def hide_secrets(diff: str) -> str:
    """A diff with the values of secret keys as dots, whatever the server left in it; empty values tell nothing."""
    return _SECRET_TEXT.sub(lambda found: f'{found[1]}"{DOTS}"', diff)
