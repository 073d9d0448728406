"""Which bytes each token of a vocabulary stands for, where the tokenizer's decoder lets that be known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec


class ByteTable(msgspec.Struct, frozen=True):
    """The bytes of every token, by id."""

    table: tuple[bytes, ...]
    trims_first_space: bool
    """True when the decoder drops one space before the first word."""


def build_byte_table(decoder: Any, tokens: Sequence[str | None]) -> ByteTable | None:
    """The table for a `tokenizers` decoder and its tokens by id; None for a decoder that is not plainly bytes."""
    shape = _describe(decoder)
    if shape == ["ByteLevel"]:
        return ByteTable(tuple(_read_byte_level(token or "") for token in tokens), trims_first_space=False)
    if shape[:3] == ["Replace", "ByteFallback", "Fuse"] and shape[3:] in ([], ["Strip"]):
        return ByteTable(tuple(_read_pieces(token or "") for token in tokens), trims_first_space=len(shape) == 4)
    return None


def _describe(decoder: Any) -> list[str]:
    """The names of a decoder's parts, in order."""
    if decoder is None:
        return []
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    parts: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return [str(part["type"]) for part in parts]


def _read_byte_level(token: str) -> bytes:
    """A token as byte-level BPE writes it; added tokens are plain text and are recognised by a foreign character."""
    alphabet = byte_alphabet()
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode("utf-8", "ignore")


def _read_pieces(token: str) -> bytes:
    """A token as SentencePiece writes it: a low line for a space, `<0x0A>` for a single byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode("utf-8", "ignore")


@cache
def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte, as character to byte.

    Printable Latin-1 bytes stand for themselves; the others take the characters from U+0100 on, in order.
    Source: the byte-level scheme of GPT-2 (Radford et al., 2019), which its successors' vocabularies keep.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
