"""What one file of the second tier holds: a node's rows and point, or a block of rows; to the host and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from server.engine.prefix.files import FileBroken, HostTensor, from_host, to_host
from server.engine.prefix.payload import Point, SpanRows
from server.models.cache import FixedPart, RowArrays

BLOCK_TOKENS = 512
"""Rows that need no point are written in blocks of so many tokens: a file is found by all of its tokens only."""


class Piece(msgspec.Struct, frozen=True):
    """What was in a file."""

    rows: SpanRows
    point: Point | None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.rows.nbytes + (self.point.nbytes if self.point else 0)


def build_piece(notes: Mapping[str, str], tensors: Mapping[str, HostTensor]) -> Piece:
    """What a file's notes and tensors are. Raises FileBroken, ValueError and LookupError."""
    first, end, _, model, head = read_span(notes)
    arrays = {name: from_host(tensor) for name, tensor in tensors.items()}
    rows = SpanRows(
        first,
        end,
        tuple(arrays[f"model.{number}"] for number in range(model)),
        tuple(arrays[f"head.{number}"] for number in range(head)),
    )
    _check_lengths(rows)
    if notes["has_point"] != "1":
        return Piece(rows, None)
    fixed = {name.removeprefix("fixed."): array for name, array in arrays.items() if name.startswith("fixed.")}
    told = msgspec.json.decode(notes["point"], type=dict[str, str])
    return Piece(rows, Point(FixedPart(end, fixed, told), arrays.get("stream")))


def divide(rows: SpanRows, point: Point | None) -> list[tuple[SpanRows, Point | None]]:
    """What a node is written as: one file, or blocks when rows alone make a state."""
    if point is None or not point.fixed.fits_anywhere or point.stream is not None:
        return [(rows, point)]
    cuts = [*range((rows.first // BLOCK_TOKENS + 1) * BLOCK_TOKENS, rows.end, BLOCK_TOKENS), rows.end]
    edges = zip([rows.first, *cuts[:-1]], cuts, strict=True)
    return [(rows.part(first, end), Point(FixedPart(end, {}, {}), None)) for first, end in edges]


def gather(rows: SpanRows, point: Point | None) -> dict[str, HostTensor]:
    """All arrays by the names that they have in a file; they must be evaluated."""
    named = {f"model.{number}": array for number, array in enumerate(rows.model)}
    named |= {f"head.{number}": array for number, array in enumerate(rows.head)}
    if point is not None:
        named |= {f"fixed.{name}": array for name, array in point.fixed.arrays.items()}
        if point.stream is not None:
            named["stream"] = point.stream
    return {name: to_host(array) for name, array in named.items()}


def read_span(notes: Mapping[str, str]) -> tuple[int, int, bool, int, int]:
    """First token, end, whether drafted, and how many arrays of rows of the model and of the head."""
    first, end, drafted, model, head = (int(word) for word in notes["span"].split())
    return first, end, bool(drafted), model, head


def _check_lengths(rows: SpanRows) -> None:
    """Raise FileBroken unless there is a row for each token."""
    lengths: Sequence[tuple[RowArrays, int]] = (
        (rows.model, rows.end - rows.first),
        (rows.head, rows.end - rows.first - (rows.first == 0)),
    )
    for arrays, tokens in lengths:
        if any(array.ndim != 4 or array.shape[2] != tokens for array in arrays):
            raise FileBroken(f"it has no rows for each of its {tokens} tokens")
