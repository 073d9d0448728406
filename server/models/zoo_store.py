"""Caches of mlx-lm taken apart into arrays and a text, and built again: nothing of it is tied to this process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from server.memory_plan import StreamCost
from server.models.cache import FixedPart, RowArrays

_ARRAY = "array"
"""Key of what stands in the text for an array: an object with its name. mlx-lm's states have no objects."""


def has_rows(cache: Any) -> bool:
    """Whether a cache is rows by position and nothing else. Rings, chunks and recurrent states are kept whole."""
    return type(cache) is KVCache


def measure_cache(cache: Any) -> StreamCost:
    """What a cache that holds a few rows takes at any length.

    Rows by position cost so much a token; a ring no more than its size. Everything else stays as large as it is.
    """
    if isinstance(cache, CacheList):
        parts = [measure_cache(part) for part in cast("Sequence[Any]", cache.caches)]
        return StreamCost(sum(part.fixed_bytes for part in parts), sum(part.token_bytes for part in parts))
    arrays = [leaf for _, leaf in tree_flatten(list(vars(cache).values())) if isinstance(leaf, mx.array)]
    rows = [array for array in arrays if array.ndim == 4]
    token_bytes = sum(-(-array.nbytes // array.shape[2]) for array in rows)
    if isinstance(cache, RotatingKVCache):
        return StreamCost(token_bytes * cast("int", cache.max_size))
    if isinstance(cache, KVCache | QuantizedKVCache):
        return StreamCost(sum(array.nbytes for array in arrays) - sum(array.nbytes for array in rows), token_bytes)
    return StreamCost(sum(array.nbytes for array in arrays))


def export_rows(caches: Iterable[Any], first: int, end: int) -> RowArrays:
    """Keys and values of positions first..end-1."""
    return tuple(mx.contiguous(array[..., first:end, :]) for cache in caches for array in (cache.keys, cache.values))


def export_whole(caches: Sequence[Any], offset: int) -> FixedPart:
    """The caches without rows, each as it is."""
    arrays: dict[str, mx.array] = {}
    notes = {
        str(place): json.dumps([type(cache).__name__, _write(cache.state, arrays)])
        for place, cache in enumerate(caches)
        if not has_rows(cache)
    }
    return FixedPart(offset, arrays, notes)


def restore_rows(cache: Any, keys: Sequence[mx.array], values: Sequence[mx.array], offset: int) -> None:
    """Put rows into an empty cache. Raises ValueError when they are not `offset` ones."""
    parts = [*keys, *values]
    if any(part.ndim != 4 for part in parts) or {sum(part.shape[2] for part in side) for side in (keys, values)} != {
        offset
    }:
        raise ValueError("rows that do not make up a cache")
    # Always arrays of their own: mlx-lm assigns into them.
    cache.keys, cache.values = mx.concatenate([*keys], axis=2), mx.concatenate([*values], axis=2)
    cache.offset = offset


def restore_whole(caches: Sequence[Any], fixed: FixedPart) -> None:
    """Put back what `export_whole` took, into fresh caches. Raises ValueError when they are others."""
    places = [place for place, cache in enumerate(caches) if not has_rows(cache)]
    if {str(place) for place in places} != set(fixed.notes):
        raise ValueError("the fixed part of a state of another model")
    for place in places:
        name, state = cast("tuple[str, Any]", json.loads(fixed.notes[str(place)]))
        if name != type(caches[place]).__name__:
            raise ValueError(f"a {name} in place of a {type(caches[place]).__name__}")
        caches[place].state = _read(state, fixed.arrays)


def _write(value: Any, arrays: dict[str, mx.array]) -> Any:
    match value:
        case mx.array():
            name = str(len(arrays))
            arrays[name] = mx.contiguous(value)
            return {_ARRAY: name}
        case list() | tuple():
            return [_write(each, arrays) for each in cast("Sequence[Any]", value)]
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TypeError(f"{type(value).__name__} in a cache's state")


def _read(value: Any, arrays: dict[str, mx.array]) -> Any:
    match value:
        case dict():
            return mx.contiguous(arrays[value[_ARRAY]])
        case list():
            return [_read(each, arrays) for each in value]
        case _:
            return value
