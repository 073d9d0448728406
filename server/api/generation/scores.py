"""Log-probabilities of an answer's tokens: they wait for the text that their token belongs to, and never outlive it.

Knows no JSON; `server.api.chat.shapes` writes it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from server.events import TokenLogprob


class Scored(msgspec.Struct, frozen=True):
    """One token of the answer with its log-probability and those of its alternatives."""

    token_id: int
    score: TokenLogprob
    start: int
    """Where its text begins in all that was generated, in characters."""


class ScoreQueue:
    """Scores in the order of their tokens, given out as the text is.

    A token belongs to the text from where its own begins, so its score goes out with its first character. A part of a
    character begins where the whole one does: the scores of all its tokens go out together with it. What never
    becomes text has no score: thoughts, calls, bytes after the last whole character, everything behind a stop string.
    """

    def __init__(self) -> None:
        self._decoded_chars = 0
        self._waiting: deque[Scored] = deque()

    def add(self, token_id: int, score: TokenLogprob | None, text: str) -> None:
        """Take in the next token, and the text that it completes; without a score only its text counts."""
        if score is not None:
            self._waiting.append(Scored(token_id, score, self._decoded_chars))
        self._decoded_chars += len(text)

    def release(self, start: int, chars: int) -> tuple[Scored, ...]:
        """The scores that go out together with so many characters from `start` on; those of before are dropped."""
        while self._waiting and self._waiting[0].start < start:
            self._waiting.popleft()
        released: list[Scored] = []
        while self._waiting and self._waiting[0].start < start + chars:
            released.append(self._waiting.popleft())
        return tuple(released)
