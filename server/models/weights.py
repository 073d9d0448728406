"""The arrays of a module, by their dotted names."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten


def name_arrays(module: Any) -> dict[str, mx.array]:
    """Every parameter of an MLX module; not evaluated."""
    return dict(tree_flatten(module.parameters()))


def count_bytes(module: Any) -> int:
    """Bytes of all parameters."""
    return sum(array.nbytes for array in name_arrays(module).values())


def name_dtype(dtype: mx.Dtype) -> str:
    """A dtype as people write it: float32, bfloat16."""
    return str(dtype).rpartition(".")[2]
