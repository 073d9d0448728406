"""An edit of the policy before it is saved: what was typed, whether it is valid, what changed underneath.

Pure: every method answers with a new value; nothing is drawn, read from disk or sent.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from server.errors import PolicyInvalid
from server.policy import Limit, LimitValue, Policy, list_limits, parse_limit, read_limit
from server.policy_store import PolicyState

LIMITS: dict[str, Limit] = {limit.key: limit for limit in list_limits()}
"""Every limit by its dotted key, in the order of the file."""


class Draft(msgspec.Struct, frozen=True):
    """What an operator typed for one limit and has not saved."""

    key: str
    text: str
    """Exactly as typed, also while it is not valid."""
    base: LimitValue
    """The value in force when this draft was begun; a different one now means that someone else changed it."""
    value: LimitValue | None
    """What the text means, None while it means nothing."""
    problem: str | None
    """Why the text cannot be saved, with the allowed range."""


class Editing(msgspec.Struct, frozen=True):
    """The policy as the editor knows it, with the drafts on top."""

    state: PolicyState
    drafts: dict[str, Draft] = {}

    def current(self, key: str) -> LimitValue:
        """The value in force."""
        return read_limit(self.state.policy, key)

    def text(self, key: str) -> str:
        """What the field of a limit holds: its draft, or the value in force as one would type it."""
        draft = self.drafts.get(key)
        return draft.text if draft else write_text(self.current(key))

    def typed(self, key: str, text: str) -> Editing:
        """With a new text for one limit; a text that means the value in force is no change."""
        held = self.drafts.get(key)
        base = held.base if held else self.current(key)
        draft = _judge(key, text, base)
        if draft.problem is None and draft.value == self.current(key):
            return self.dropped(key)
        return Editing(self.state, {**self.drafts, key: draft})

    def dropped(self, *keys: str) -> Editing:
        """Without the drafts of these limits: they show the value in force again."""
        return Editing(self.state, {key: draft for key, draft in self.drafts.items() if key not in keys})

    def reverted(self) -> Editing:
        """Without any draft."""
        return Editing(self.state)

    def adopted(self, state: PolicyState) -> Editing:
        """After a change made elsewhere: untouched limits take it over, drafts stay and may now be in conflict."""
        kept = {
            key: draft
            for key, draft in self.drafts.items()
            if draft.problem is not None or draft.value != read_limit(state.policy, key)
        }
        return Editing(state, kept)

    def settled(self, state: PolicyState, saved: Mapping[str, LimitValue]) -> Editing:
        """After our own save: what was saved is a draft no more; what was typed meanwhile is, on the new ground."""
        kept = {
            key: msgspec.structs.replace(draft, base=read_limit(state.policy, key))
            for key, draft in self.drafts.items()
            if key not in saved or draft.value != saved[key]
        }
        return Editing(state, kept)

    def insisted(self) -> Editing:
        """With every conflict settled for the drafts: the other change is known and will be written over."""
        return self.settled(self.state, {})

    def yielded(self) -> Editing:
        """With every conflict settled for the file: those drafts are dropped."""
        return self.dropped(*(draft.key for draft in self.conflicts))

    @property
    def changes(self) -> dict[str, LimitValue]:
        """What a save would set, by dotted key; drafts that are not valid are left out."""
        return {key: draft.value for key, draft in self.drafts.items() if draft.value is not None}

    @property
    def invalid(self) -> tuple[Draft, ...]:
        """Drafts that cannot be saved."""
        return tuple(draft for draft in self.drafts.values() if draft.problem is not None)

    @property
    def conflicts(self) -> tuple[Draft, ...]:
        """Drafts whose limit someone else changed since they were begun."""
        return tuple(draft for draft in self.drafts.values() if draft.base != self.current(draft.key))

    @property
    def is_file_broken(self) -> bool:
        """Whether the file on disk is not valid; one that is gone is written anew by the next save."""
        return self.state.problem is not None and self.state.exists

    @property
    def refusal(self) -> str | None:
        """Why a save is impossible now, None when it is possible (a conflict is asked about, not refused)."""
        if self.is_file_broken:
            return "Nothing is saved while the file on disk is not valid; mend it first."
        if self.invalid:
            names = ", ".join(short_name(draft.key) for draft in self.invalid)
            return f"Fix {names} first: {self.invalid[0].problem}"
        if not self.drafts:
            return "There is nothing to save."
        return None


def _judge(key: str, text: str, base: LimitValue) -> Draft:
    try:
        return Draft(key, text, base, parse_limit(key, text), None)
    except PolicyInvalid as error:
        return Draft(key, text, base, None, error.message)


def short_name(key: str) -> str:
    """The last part of a dotted key, which is how the file writes it inside its table."""
    return key.rpartition(".")[2]


def write_text(value: LimitValue) -> str:
    """A value as an operator would type it: `parse_limit` reads it back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value)


def plan_step(key: str, text: str, direction: int) -> str | None:
    """The text that one step left (-1) or right (+1) from `text` gives, None when a limit is only typed.

    Choices and yes-or-no go round; whole numbers of a small range stop at its ends.
    """
    limit = LIMITS[key]
    if limit.kind in ("bool", "choice"):
        texts = ["false", "true"] if limit.kind == "bool" else [str(choice) for choice in limit.choices]
        here = texts.index(text) if text in texts else -direction
        return texts[(here + direction) % len(texts)]
    if limit.kind != "int" or limit.minimum is None or limit.maximum is None or limit.maximum > _LARGEST_DIAL:
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return str(int(min(max(number + direction, limit.minimum), limit.maximum)))


_LARGEST_DIAL = 64
"""Ranges up to here are worth walking through one by one; a port or a token count is typed."""


def list_differences(before: Policy, after: Policy) -> tuple[tuple[str, LimitValue, LimitValue], ...]:
    """(dotted key, old value, new value) of every limit that differs."""
    pairs = ((key, read_limit(before, key), read_limit(after, key)) for key in LIMITS)
    return tuple(pair for pair in pairs if pair[1] != pair[2])
