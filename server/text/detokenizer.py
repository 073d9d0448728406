"""Turns token ids into text as they come: whole characters only, and no special token ever."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

HELD_TOKENS = 8
"""A character takes at most 4 bytes, and so at most 4 tokens: after twice that, what is held back is no character."""


class Detokenizer(Protocol):
    """The text of one sequence; made anew for each."""

    def add(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        ...

    def hides(self, token_id: int) -> bool:
        """True for a token that never has text, whatever follows."""
        ...

    def finish(self) -> str:
        """What is left when no more tokens come; half a character is left out."""
        ...


class ByteDetokenizer:
    """For vocabularies whose every token stands for some bytes, given as `table` by token id.

    Constant work per token. Bytes that form no character in UTF-8 are left out.
    """

    def __init__(self, table: Sequence[bytes], hidden: frozenset[int], *, trims_first_space: bool = False) -> None:
        self._table, self._hidden = table, hidden
        self._trims_first_space = trims_first_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def add(self, token_id: int) -> str:
        """The text that this token completes. An id outside of the vocabulary has none."""
        if self.hides(token_id):
            return ""
        return self._trim(self._decoder.decode(self._table[token_id]))

    def hides(self, token_id: int) -> bool:
        """True for special tokens and for ids outside of the vocabulary."""
        return token_id in self._hidden or not 0 <= token_id < len(self._table)

    def finish(self) -> str:
        """Drop half a character, if there is one."""
        return self._trim(self._decoder.decode(b"", final=True))

    def _trim(self, text: str) -> str:
        """Llama-style vocabularies write a space before the first word, which is not part of the text."""
        if self._trims_first_space and text:
            self._trims_first_space = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer:
    """For any other vocabulary: decodes the last tokens again and takes what is new at their end."""

    def __init__(self, decode: Callable[[list[int]], str], hidden: frozenset[int]) -> None:
        self._decode, self._hidden = decode, hidden
        self._shown: list[int] = []
        self._pending: list[int] = []

    def add(self, token_id: int) -> str:
        """The text that this token completes."""
        if self.hides(token_id):
            return ""
        self._pending.append(token_id)
        text = self._read_pending()
        if text.endswith("\ufffd") and len(self._pending) < HELD_TOKENS:
            return ""
        return self._show(text)

    def hides(self, token_id: int) -> bool:
        """True for special tokens."""
        return token_id in self._hidden

    def finish(self) -> str:
        """What is left, without half a character."""
        return self._show(self._read_pending()) if self._pending else ""

    def _read_pending(self) -> str:
        # Decoded together with the tokens before, because spaces between tokens depend on the neighbours.
        before = self._decode(self._shown)
        return self._decode(self._shown + self._pending)[len(before) :]

    def _show(self, text: str) -> str:
        self._shown, self._pending = self._pending, []
        return text.replace("\ufffd", "")
