"""One answer's place in its grammar, on llguidance: what may come next there, forward and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher

from server.engine.guide import MaskRow

PLACE = re.compile(r"^(?:at )?(\d+)\(\d+\): ")
"""Line and column of the grammar, where llguidance's errors begin with them."""


_TOO_WIDE = re.compile(r"Current row has|Too many items")


class MatchFault(Exception):
    """The grammar cannot be followed any further from here; the matcher is of no more use."""


class GrammarMatcher:
    """Follows a grammar. After a MatchFault only `restart` helps: llguidance never leaves that state."""

    def __init__(self, build: Callable[[], LLMatcher], words: int) -> None:
        self._build = build
        self._words = words
        self._matcher = build()
        self._taken: list[int] = []

    def read_row(self) -> MaskRow:
        """What may come next; the ids that end an answer among it, where it may end."""
        row = np.zeros(self._words, np.uint32)
        self._check()
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._check()
        return row

    def take(self, token: int) -> None:
        """Go on by a token."""
        self._matcher.consume_token(token)
        self._check()
        self._taken.append(token)

    def take_allowed(self, tokens: Sequence[int]) -> int:
        """Go on by those tokens that may come, one after another, up to the first that may not; how many they were."""
        taken = self._matcher.try_consume_tokens(list(tokens))
        self._check()
        self._taken += tokens[:taken]
        return taken

    def go_back(self, tokens: int) -> None:
        """Forget so many of the newest tokens."""
        if tokens:
            self._matcher.rollback(tokens)
            self._check()
            del self._taken[-tokens:]

    def restart(self, tokens: int) -> None:
        """Follow the grammar from the start again, up to so many of the newest tokens fewer."""
        if tokens:
            del self._taken[-tokens:]
        self._matcher = self._build()
        self._matcher.consume_tokens(self._taken)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MatchFault(_name_fault(self._matcher.get_error()))


def _name_fault(error: str) -> str:
    if _TOO_WIDE.search(error):
        return "too many keys or choices may come at one place of it; require more of the keys, or offer fewer"
    return "no text satisfies it" if error.startswith("NoExtension") else error


def shorten_fault(error: str) -> str:
    """The first line of what llguidance says, without the place in the grammar; of a pattern, what is wrong in it.

    It may quote a schema's text, so that what cannot be printed is escaped.
    """
    first, *others = error.strip().splitlines() or [""]
    told = PLACE.sub("", first).removeprefix("failed to compile JSON schema: ")
    if told.endswith(":") and others:
        reason = next((line.removeprefix("error: ") for line in others if line.startswith("error: ")), "")
        pattern = others[0].strip()[:80] if others[0].startswith("    ") else "its text"
        told = f"{told} {reason} in {pattern}" if reason else told
    told = told.rstrip(".:")[:200]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in told)
