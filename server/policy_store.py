"""The current policy: load, validate, edit, write back, watch, announce. The only writer of homebase.toml.

Every change goes the same way, whether the console or an editor made it: validate, write, swap, announce. A file that
is not in order never touches the policy in force, and is never written over.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from server.access import check_access, list_warnings
from server.errors import PolicyConflict, PolicyError, PolicyInvalid
from server.events import AnyNotice, PolicyChanged, PolicyProblem
from server.policy import (
    LimitValue,
    Policy,
    apply_changes,
    find_limit,
    list_limits,
    read_limit,
    validate_policy,
)
from server.policy_file.document import (
    DOTS,
    EMPTY,
    PolicyDocument,
    compute_etag,
    edit_document,
    read_document,
    show_diff,
    validate_changes,
)
from server.policy_file.edit import write_value
from server.policy_file.replace import check_writable, hold_folder, read_bytes, replace_bytes
from server.policy_file.watch import watch_file
from server.snapshot import PolicyView


class PolicyState(msgspec.Struct, frozen=True):
    """The policy in force, its file, and where each value comes from."""

    policy: Policy
    """In force now: the file's values with this run's flags on top."""
    path: str
    exists: bool
    etag: str
    """SHA-256 of the file's bytes in hex, empty when there is no file."""
    problem: str | None
    """Why the file on disk is not in force (with file and line), None when it is."""
    origins: dict[str, str]
    """Dotted key to where its value comes from: `homebase.toml:12`, `--port` or `default`."""
    can_undo: bool
    warnings: tuple[str, ...] = ()


class PolicyDraft(msgspec.Struct, frozen=True):
    """What saving a set of changes would do."""

    diff: str
    """Changed lines with a little context, `-` and `+` in front; empty when the file would stay as it is."""
    etag: str
    """Of the file that the draft was made from; hand it to `edit`."""
    problem: str | None
    """Why it cannot be saved, in a sentence."""
    notes: tuple[str, ...] = ()
    """What else an operator should know before saving, e.g. that a flag of this run goes before the file."""


class _Save(msgspec.Struct, frozen=True):
    """One save of this run: what it found, and the file that it left."""

    data: bytes | None
    document: PolicyDocument
    etag_after: str


class PolicySave(msgspec.Struct, frozen=True):
    """What `put` did: the file's own values before and after, whatever flags go before them."""

    before: Policy
    after: Policy
    state: PolicyState
    notes: tuple[str, ...]
    """As a draft has them."""


class _Edit(msgspec.Struct, frozen=True):
    """Dotted keys to be set, and in which file."""

    changes: Mapping[str, LimitValue]
    etag: str | None
    """Of the file that they were chosen for; None for whichever is there."""
    is_exact: bool = False
    """True refuses any other file; else only one in which one of these keys has become something else."""
    by: str = ""
    """Who asked for it over HTTP."""


Origin = Literal["console", "api", "file", "undo"]

_NO_OVERRIDES: Mapping[str, tuple[LimitValue, str]] = {}

_KEPT_SAVES = 50
_KEPT_BASES = 64
"""How many earlier versions an edit may still refer to; an older one is treated as changed in every key."""

_ATTEMPTS = 3
"""How often a save starts anew because the file changed between reading and replacing."""

_SETTLE_TRIES = 6
_SETTLE_S = 0.05
"""Editors that empty a file and then fill it do so within milliseconds; until then nothing is believed."""


class PolicyStore:
    """Owns homebase.toml and the policy in force. Any thread may call; `state` never waits for a disk."""

    def __init__(
        self,
        path: Path,
        template: bytes,
        overrides: Mapping[str, tuple[LimitValue, str]] = _NO_OVERRIDES,
        publish: Callable[[AnyNotice], object] = lambda notice: None,
        wall: Callable[[], float] = time.time,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`overrides` are this run's flags: dotted key to value and flag name. They are never written.

        `environment` has the keys that the policy names.
        """
        self._path = path.absolute()
        self._name = path.name
        self._template = template
        self._publish = publish
        self._wall = wall
        self._environment = environment
        self._lock = threading.RLock()
        self._data: bytes | None = None
        self._document = EMPTY
        self._saves: list[_Save] = []
        self._bases: dict[str, Policy] = {}
        self._overrides: dict[str, tuple[LimitValue, str]] = {}
        # Defaults until `load`, which also judges the flags.
        self._state = self._build_state(None)
        self._overrides = dict(overrides)

    @property
    def state(self) -> PolicyState:
        """The policy in force and all about its file; frozen, and swapped whole."""
        return self._state

    def load(self) -> PolicyState:
        """Read the file at start. Raises PolicyInvalid, with file and line or the flag, when it cannot be used."""
        with self._lock:
            self._check_overrides()
            self._data = read_bytes(self._path)
            self._document = self._judge(EMPTY if self._data is None else read_document(self._data, self._name))
            self._swap(None)
            return self._state

    def draft(self, changes: Mapping[str, LimitValue]) -> PolicyDraft:
        """What saving these dotted keys would do. Never raises for what is wrong with them or with the file."""
        with self._lock:
            try:
                self._refresh()
                ground = self._find_ground()
                edited = self._judge(edit_document(ground, changes, self._name))
                if edited is not ground:
                    check_writable(self._path)
            except PolicyError as error:
                return PolicyDraft("", self._state.etag, error.message)
            return PolicyDraft(show_diff(ground, edited), self._state.etag, None, self._list_notes(changes))

    def edit(self, changes: Mapping[str, LimitValue], etag: str) -> PolicyState:
        """Put dotted keys into the file and in force; `etag` is that of the file that the edit was made from.

        Other keys that changed in the file meanwhile are taken over. Raises PolicyInvalid for a value that is not
        allowed or a file that is not in order, PolicyConflict when one of these keys was changed to something else,
        PolicyUnwritable when the file cannot be written. The policy in force is then as it was.
        """
        return self._edit(_Edit(changes, etag))

    def put(self, changes: Mapping[str, LimitValue], etag: str | None, by: str) -> PolicySave:
        """The same for a caller over HTTP: with an etag in that very file, without one in whatever file there is.

        Raises PolicyConflict, with the keys that differ since, when the file is another one.
        """
        with self._lock:
            last = self._saves[-1] if self._saves else None
            state = self._edit(_Edit(changes, etag, is_exact=True, by=by))
            save = self._saves[-1] if self._saves else None
            before = self._document.policy if save is None or save is last else save.document.policy
            return PolicySave(before, self._document.policy, state, self._list_notes(changes))

    def undo(self) -> PolicyState:
        """Take back the last save of this run, byte for byte; raises PolicyConflict when the file changed since."""
        with self._lock:
            if not self._saves:
                raise PolicyConflict("There is no save of this run left to take back.")
            save = self._saves[-1]
            with hold_folder(self._path) as locked:
                self.reload()
                if self._state.etag != save.etag_after:
                    raise PolicyConflict(f"{self._name} was changed since that save; undoing it would lose the change.")
                replace_bytes(self._path, save.data, self._data, locked=locked)
            self._saves.pop()
            self._adopt(save.document, save.data, "undo")
            if save.data is None:
                self._note_absence()
            return self._state

    def reload(self) -> PolicyState:
        """Look at the file again: put it in force, or say in `state.problem` why it is not."""
        with self._lock:
            try:
                self._refresh()
            except PolicyInvalid:
                return self._state  # its problem tells
            return self._state

    async def watch(self, stop: asyncio.Event) -> None:
        """Reload whenever the file changes on disk, until `stop` is set; reading never blocks the loop."""
        await watch_file(self._path, stop, self._notice)

    def view(self) -> PolicyView:
        """The policy as snapshots show it."""
        state = self._state
        values = {limit.key: self._show(limit.key, state.policy) for limit in list_limits()}
        return PolicyView(state.path, state.exists, state.etag, state.problem, values)

    def _edit(self, edit: _Edit) -> PolicyState:
        with self._lock:
            for attempt in range(_ATTEMPTS):
                try:
                    return self._edit_once(edit)
                except PolicyConflict as conflict:
                    if conflict.keys or attempt == _ATTEMPTS - 1:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _edit_once(self, edit: _Edit) -> PolicyState:
        if self._plan(edit) is None:
            return self._state
        with hold_folder(self._path) as locked:
            edited = self._plan(edit)
            if edited is None:
                return self._state
            replace_bytes(self._path, edited.data, self._data, locked=locked)
        save = _Save(self._data, self._document, compute_etag(edited.data))
        self._saves = [*self._saves, save][-_KEPT_SAVES:]
        self._adopt(edited, edited.data, "api" if edit.by else "console", edit.by)
        return self._state

    def _plan(self, edit: _Edit) -> PolicyDocument | None:
        """The document to write, None when the file says all that already."""
        try:
            self._refresh()
        except PolicyInvalid as error:
            raise PolicyInvalid(
                f"Nothing was saved, as the file is not in order: {error.message}", key=error.key, line=error.line
            ) from None
        wanted = validate_changes(self._document, edit.changes)
        if edit.is_exact and edit.etag is not None:
            self._refuse_another(edit.etag)
        elif edit.etag is not None:
            self._refuse_conflicts(wanted, self._bases.get(edit.etag))
        ground = self._find_ground()
        edited = self._judge(edit_document(ground, wanted, self._name))
        return None if edited is ground else edited

    def _refuse_conflicts(self, wanted: Mapping[str, LimitValue], base: Policy | None) -> None:
        current = self._document.policy
        keys = tuple(
            key
            for key, value in wanted.items()
            if read_limit(current, key) != value and (base is None or read_limit(current, key) != read_limit(base, key))
        )
        if keys:
            told = "; ".join(
                f"{key} is {_show(key, read_limit(current, key))} there and {_show(key, wanted[key])} here"
                for key in keys
            )
            raise PolicyConflict(f"{self._name} was changed by someone else: {told}. Nothing was saved.", keys)

    def _refuse_another(self, etag: str) -> None:
        """Raise PolicyConflict when the file is not the one of this etag."""
        if etag == self._state.etag:
            return
        base, current = self._bases.get(etag), self._document.policy
        keys = tuple(
            limit.key
            for limit in list_limits()
            if base is not None and read_limit(base, limit.key) != read_limit(current, limit.key)
        )
        told = "; ".join(
            f"{key} was {_show(key, read_limit(base or current, key))} there and is "
            f"{_show(key, read_limit(current, key))}"
            for key in keys
        )
        same = "no limit differs" if base is not None else "what it held is not known any more"
        raise PolicyConflict(
            f"{self._name} is another one than If-Match names: {told or same}. Nothing was saved; read it again.", keys
        )

    def _find_ground(self) -> PolicyDocument:
        """What an edit starts from: the file; when it is gone, its last text; when there was none, the template."""
        if self._data is not None or self._document is not EMPTY:
            return self._document
        try:
            # The template may be a checkout's live file: only its words are taken, not the values set there.
            defaults = {limit.key: limit.default for limit in list_limits()}
            return edit_document(read_document(self._template, self._name), defaults, self._name)
        except PolicyError:
            return EMPTY

    def _refresh(self) -> None:
        """Take over what the disk holds now. Raises PolicyInvalid when it is not in order, after saying so."""
        data = self._data
        try:
            data = read_bytes(self._path)
            if data == self._data and self._state.problem is None:
                return
            if data is None:
                self._note_absence()
            else:
                self._adopt(self._judge(read_document(data, self._name)), data, "file")
        except PolicyInvalid as error:
            self._data = data
            self._swap(error.message)
            raise

    def _judge(self, document: PolicyDocument) -> PolicyDocument:
        """The document, when this run can have it: its keys are there, and no flag opens it to everyone.

        Raises PolicyInvalid with file and line, or the flag.
        """
        try:
            check_access(self._overlay(document.policy).server, self._environment)
        except PolicyInvalid as error:
            key = error.key or ""
            line = None if key in self._overrides else document.lines.get(key)
            place = self._find_origin(key, document).removeprefix("default")
            raise PolicyInvalid(f"{place}: {error.message}" if place else error.message, key=key, line=line) from None
        return document

    def _overlay(self, policy: Policy) -> Policy:
        """A file's policy with this run's flags on top."""
        flags = {key: value for key, (value, _) in self._overrides.items()}
        return validate_policy(apply_changes(msgspec.to_builtins(policy), flags))

    def _note_absence(self) -> None:
        self._data = None
        gone = f"{self._name} is gone; its last limits stay in force, and a save writes them to a new file."
        self._swap(None if self._document is EMPTY else gone)

    def _adopt(self, document: PolicyDocument, data: bytes | None, origin: Origin, by: str = "") -> None:
        """Put a document in force and announce what that changes."""
        before = self._state.policy
        self._document, self._data = document, data
        self._swap(None)
        after = self._state.policy
        changes = tuple(
            (limit.key, _show(limit.key, read_limit(before, limit.key)), _show(limit.key, read_limit(after, limit.key)))
            for limit in list_limits()
            if read_limit(before, limit.key) != read_limit(after, limit.key)
        )
        if changes:
            self._publish(PolicyChanged(time_s=self._wall(), origin=origin, changes=changes, by=by))

    def _swap(self, problem: str | None) -> None:
        """Show the store's own fields to everyone, in one assignment."""
        before = self._state.problem
        self._state = self._build_state(problem)
        self._bases.pop(self._state.etag, None)
        self._bases[self._state.etag] = self._document.policy
        while len(self._bases) > _KEPT_BASES:
            del self._bases[next(iter(self._bases))]
        if problem != before:
            self._publish(PolicyProblem(time_s=self._wall(), message=problem or ""))

    def _build_state(self, problem: str | None) -> PolicyState:
        policy = self._overlay(self._document.policy)
        etag = compute_etag(self._data)
        return PolicyState(
            policy=policy,
            path=str(self._path),
            exists=self._data is not None,
            etag=etag,
            problem=problem,
            origins={limit.key: self._find_origin(limit.key, self._document) for limit in list_limits()},
            can_undo=bool(self._saves) and self._saves[-1].etag_after == etag,
            warnings=self._document.warnings + list_warnings(policy),
        )

    def _find_origin(self, key: str, document: PolicyDocument) -> str:
        if key in self._overrides:
            return self._overrides[key][1]
        if key not in document.lines:
            return "default"
        line = document.lines[key]
        return self._name if line is None else f"{self._name}:{line}"

    def _check_overrides(self) -> None:
        for key, (value, flag) in self._overrides.items():
            try:
                validate_policy(apply_changes({}, {key: value}))
            except PolicyInvalid as error:
                raise PolicyInvalid(error.message.replace(f"{key}:", f"{flag}:", 1), key=key) from None

    def _list_notes(self, changes: Mapping[str, LimitValue]) -> tuple[str, ...]:
        flags = {key: self._overrides[key] for key in changes if key in self._overrides}
        return tuple(
            f"{flag} {_show(key, value)} goes before {key} in the file for this run."
            for key, (value, flag) in flags.items()
        )

    def _show(self, key: str, policy: Policy) -> LimitValue:
        value = read_limit(policy, key)
        return DOTS if value and find_limit(key).secret else value

    async def _notice(self) -> None:
        """Reload once the file has come to rest; an empty or missing one is given time to be filled."""
        seen = self._data
        for _ in range(_SETTLE_TRIES):
            now = await asyncio.to_thread(self._peek)
            if now == seen and (now or now == self._data):
                break
            seen = now
            await asyncio.sleep(_SETTLE_S)
        await asyncio.to_thread(self.reload)

    def _peek(self) -> bytes | None:
        try:
            return read_bytes(self._path)
        except PolicyInvalid:
            return None


def _show(key: str, value: LimitValue) -> str:
    """A value as TOML writes it, secrets as dots."""
    return write_value(DOTS if value and find_limit(key).secret else value)
