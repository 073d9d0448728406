"""Checks on rows that a state is to be built from: they may come from a file."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from server.models.cache import RowArrays


def check_rows(buffers: Sequence[mx.array], spans: Sequence[RowArrays], tokens: int) -> None:
    """Raise ValueError unless the spans are rows like those of a state's own buffers, `tokens` of them together."""
    for span in spans:
        if [_kind(rows) for rows in span] != [_kind(buffer) for buffer in buffers]:
            raise ValueError("rows of a state of another model")
        if len({rows.shape[2] for rows in span}) > 1:
            raise ValueError("rows of unequal length")
    held = sum(span[0].shape[2] for span in spans) if buffers else tokens
    if held != tokens:
        raise ValueError(f"rows for {held} tokens in place of {tokens}")


def _kind(rows: mx.array) -> tuple[tuple[int, ...], mx.Dtype]:
    """Shape and type, the positions left aside."""
    return (*rows.shape[:2], *rows.shape[3:]), rows.dtype
