"""How deep a JSON text is nested and how many values it has, told before anything of it is built.

32 MB of `[],` are eleven million lists, 700 MB and most of a second in which the interpreter's lock is held, so that
the loop stands still too, on whichever thread they are decoded. So brackets and commas are counted first: in C, and a
piece at a time, with the lock free in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from server.errors import InvalidRequest

MOST_DEPTH = 100
"""Lists and objects in one another. A tool's schema has 10 to 20."""

MOST_VALUES = 200_000
"""Values and names together. A conversation of a thousand turns with a hundred tools has some 40,000."""

MOST_DIGITS = 400
"""In one number; a double has 309 before its point. Reading a long one takes time that grows with its square: 7,600 of
4,300 digits took over a second."""

PIECE_BYTES = 256 * 1024
"""Looked at in one go: about 2 ms of text that is mostly escapes (x86-64, Python 3.11, 2026-11-30)."""

_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
"""A string, or as much of one as there is; the group tells which."""

_SAME_DIGIT = bytes.maketrans(b"023456789", b"1" * 9)
_LONG_NUMBER = b"1" * (MOST_DIGITS + 1)

_NESTING = bytes.maketrans(b"{}", b"[]")
_NOT_NESTING = bytes(byte for byte in range(256) if byte not in b"[]{}")


def check_shape(body: bytes) -> int:
    """About how many values a JSON text has. Raises InvalidRequest when it is too deep, has too many, or a huge number.

    Says nothing of other faults.
    """
    brackets, values, texts = bytearray(), 0, 0
    for piece in _read_structure(body):
        values += sum(map(piece.count, (b",", b":", b"[", b"{")))
        texts += piece.count(b'"')
        brackets += piece.translate(_NESTING, _NOT_NESTING)
        if max(values, texts, len(brackets) // 2) > MOST_VALUES:
            raise InvalidRequest(f"The request body has more than {MOST_VALUES:,} values; send fewer of them.")
        if _LONG_NUMBER in piece.translate(_SAME_DIGIT):
            raise InvalidRequest(
                f"The request body has a number that is too large to be used: more than {MOST_DIGITS} digits."
            )
    if _is_deeper(bytes(brackets), MOST_DEPTH):
        raise InvalidRequest(f"The request body is nested too deeply; at most {MOST_DEPTH} levels are read.")
    return max(values, texts)


def _read_structure(body: bytes) -> Iterator[bytes]:
    """The body without its strings, piece by piece; of each string its last quote is left, to be counted."""
    at, is_inside = 0, False
    while at < len(body):
        end = at + PIECE_BYTES
        while _ends_in_escape(body, at, end):
            end += 1
        piece = body[at:end]
        at = end
        rest, texts = _TEXT.subn(rb"\1", b'"' + piece if is_inside else piece)
        is_inside = texts > rest.count(b'"')
        yield rest


def _ends_in_escape(body: bytes, start: int, end: int) -> bool:
    """True when a piece ends between a backslash and what it escapes."""
    piece = body[start:end]
    return end < len(body) and (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1


def _is_deeper(brackets: bytes, most: int) -> bool:
    """True for brackets in one another beyond `most`. Brackets that do not match are a fault that parsing finds."""
    for _ in range(most):
        rest = brackets.replace(b"[]", b"")
        if len(rest) == len(brackets):
            return len(brackets) > most and brackets.startswith(b"[" * (most + 1))
        brackets = rest
    return b"[]" in brackets
