"""Responses that are kept for a while, in memory only, each for the API key that asked for it.

A response knows the one that it follows, so a conversation's items are kept once and not again with every turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from server.errors import ResponseNotFound

KEPT_MOST = 2000
"""Responses, those that only later ones still need included."""

KEPT_MOST_BYTES = 64 * 1024 * 1024
"""Of JSON. A turn of an agent adds some KB to some hundred KB, so this is hours of several agents."""

KEPT_S = 24 * 3600.0
"""As long as a session of a coding agent is likely to go on."""

NODE_BYTES = 1024
"""What keeping one takes besides its JSON."""


class Kept:
    """One response that is kept."""

    def __init__(self, owner: str, response: bytes, items: bytes, output: bytes, previous: Kept | None) -> None:
        self.owner = owner
        self.response = response
        """Its object."""
        self.items = items
        """What was sent as its input, a JSON list."""
        self.output = output
        """The items of its output, a JSON list."""
        self.previous = previous
        self.kept_s = 0.0
        self.is_listed = False
        """It can be asked for. If not, later ones may still need it."""
        self.followers = 0
        self.is_counted = False

    @property
    def size_bytes(self) -> int:
        """What it takes, without those before it."""
        return len(self.response) + len(self.items) + len(self.output) + NODE_BYTES

    def read_items(self) -> list[dict[str, Any]]:
        """What was sent as its input."""
        return msgspec.json.decode(self.items)

    def read_output(self) -> list[dict[str, Any]]:
        """The items of its output."""
        return msgspec.json.decode(self.output)


def list_turns(last: Kept | None) -> list[Kept]:
    """The responses up to one and with it, the oldest first."""
    turns: list[Kept] = []
    while last is not None:
        turns.append(last)
        last = last.previous
    return turns[::-1]


def read_conversation(last: Kept | None) -> list[dict[str, Any]]:
    """All items up to a response and with it, the oldest first."""
    return [item for turn in list_turns(last) for item in (*turn.read_items(), *turn.read_output())]


def measure_conversation(last: Kept | None) -> int:
    """The bytes of all these items."""
    return sum(len(turn.items) + len(turn.output) for turn in list_turns(last))


class ResponseStore:
    """Keeps responses within bounds: the oldest go first."""

    def __init__(self, read_s: Callable[[], float] = time.monotonic) -> None:
        self._read_s = read_s
        self._listed: dict[str, Kept] = {}
        self._count = 0
        self._bytes = 0

    @property
    def count(self) -> int:
        """How many are kept, those that only later ones still need included."""
        return self._count

    @property
    def kept_bytes(self) -> int:
        """What they take."""
        return self._bytes

    def put(self, response_id: str, kept: Kept) -> None:
        """Keep a response; the oldest make room for it, and it does not stay when there is none."""
        kept.kept_s = self._read_s()
        self._listed[response_id] = kept
        kept.is_listed = True
        self._hold(kept)
        self._drop_old()
        while self._listed and (self._count > KEPT_MOST or self._bytes > KEPT_MOST_BYTES):
            self._unlist(next(iter(self._listed)))

    def find(self, owner: str, response_id: str) -> Kept:
        """A response. Raises ResponseNotFound for one that is not there, or not this owner's."""
        self._drop_old()
        kept = self._listed.get(response_id)
        if kept is None or kept.owner != owner:
            raise ResponseNotFound(response_id)
        return kept

    def delete(self, owner: str, response_id: str) -> None:
        """Forget a response. Later ones keep what they need of it. Raises ResponseNotFound."""
        self.find(owner, response_id)
        self._unlist(response_id)

    def _drop_old(self) -> None:
        oldest_s = self._read_s() - KEPT_S
        while self._listed:
            response_id, kept = next(iter(self._listed.items()))
            if kept.kept_s > oldest_s:
                return
            self._unlist(response_id)

    def _unlist(self, response_id: str) -> None:
        kept = self._listed.pop(response_id)
        kept.is_listed = False
        self._let_go(kept)

    def _hold(self, kept: Kept | None) -> None:
        """Count one, and those before it that were let go of while it was being made."""
        while kept is not None and not kept.is_counted:
            kept.is_counted = True
            self._count += 1
            self._bytes += kept.size_bytes
            kept = kept.previous
            if kept is not None:
                kept.followers += 1

    def _let_go(self, kept: Kept | None) -> None:
        """Count one no more, and those before it that only it needed."""
        while kept is not None and not kept.is_listed and not kept.followers:
            kept.is_counted = False
            self._count -= 1
            self._bytes -= kept.size_bytes
            kept = kept.previous
            if kept is not None:
                kept.followers -= 1
