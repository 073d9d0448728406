"""Matrix products of rows with stored weights: several projections of one input in as few calls as packings allow."""

from __future__ import annotations

from itertools import accumulate

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from server.models.flash_next.spans import FEW_ROWS

Projection = nn.Linear | nn.QuantizedLinear

SMALL_PRODUCT = 1_000_000
"""Multiplications up to which OpenBLAS reads the weight where it lies; for more it copies it first, each time.

Source: its `sgemm_small_kernel_permit` for AVX-512."""
MOST_PANELS = 8
"""A wider output head costs so much that the copy does not show."""


class StackedLinear(nn.Module):
    """The rows of bias-free projections that are packed alike, as one matrix.

    Each output is the same dot product as before; only the count of operations falls, and a decode step of a small
    model is bound by that count.
    """

    def __init__(self, parts: list[Projection]) -> None:
        super().__init__()
        first = parts[0]
        weight = mx.concatenate([part.weight for part in parts], axis=0) if len(parts) > 1 else first.weight
        self.splits = tuple(accumulate(part.weight.shape[0] for part in parts))[:-1]
        self.packing: tuple[int, int, str] | None = None
        if isinstance(first, nn.QuantizedLinear):
            self.weight = weight
            self.packing = (first.group_size, first.bits, first.mode)
            self.scales = mx.concatenate([part["scales"] for part in parts], axis=0)
            if first.get("biases") is not None:
                self.biases = mx.concatenate([part["biases"] for part in parts], axis=0)
        else:
            self.weight = lay_out(weight)

    def multiply(self, x: mx.array) -> mx.array:
        """The outputs (T, sum of all parts) side by side."""
        if self.packing is None:
            return x @ self.weight
        group_size, bits, mode = self.packing
        return mx.quantized_matmul(
            x, self.weight, self.scales, self.get("biases"), transpose=True, group_size=group_size, bits=bits, mode=mode
        )

    def __call__(self, x: mx.array) -> list[mx.array]:
        """The output (T, out) of each part."""
        product = self.multiply(x)
        return list(mx.split(product, list(self.splits), axis=-1)) if self.splits else [product]


class JoinedLinear(nn.Module):
    """All projections of one input: one product per packing, outputs in the order of the parts."""

    def __init__(self, *parts: Projection) -> None:
        super().__init__()
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, part in enumerate(parts):
            groups.setdefault(_packing(part), []).append(index)
        self.stacks = [StackedLinear([parts[index] for index in members]) for members in groups.values()]
        order = [index for members in groups.values() for index in members]
        self.places = tuple(order.index(index) for index in range(len(parts)))

    def __call__(self, x: mx.array) -> list[mx.array]:
        """The output (T, out) of each part."""
        outputs = [output for stack in self.stacks for output in stack(x)]
        return [outputs[place] for place in self.places]


class SingleLinear(nn.Module):
    """One projection, its weight laid out once."""

    def __init__(self, part: Projection) -> None:
        super().__init__()
        self.stack = StackedLinear([part])

    def __call__(self, x: mx.array) -> mx.array:
        """Rows (T, in) to rows (T, out)."""
        return self.stack.multiply(x)


class HeadLinear(nn.Module):
    """The projection to the vocabulary: on a CPU cut into panels, so that a few rows are small products.

    4 rows by (128, 3072) take 98 us in one and 42 in four (one core of 2 x86, 2026-11-30).
    """

    def __init__(self, part: Projection) -> None:
        super().__init__()
        stack = StackedLinear([part])
        panels = -(-FEW_ROWS * part.weight.size // SMALL_PRODUCT)
        if stack.packing is not None or mx.default_device() != mx.cpu or not 1 < panels <= MOST_PANELS:
            self.stack = stack
        else:
            self.panels = [mx.contiguous(panel) for panel in _cut(stack.weight, panels)]

    def __call__(self, x: mx.array) -> mx.array:
        """Rows (T, H) to logits (T, V)."""
        if "panels" not in self:
            return self.stack.multiply(x)
        return mx.concatenate([x @ panel for panel in self.panels], axis=-1)


def read_as_projection(embedding: nn.Embedding | nn.QuantizedEmbedding) -> Projection:
    """The embedding as the output head, for models that tie the two; it shares the arrays."""
    if not isinstance(embedding, nn.QuantizedEmbedding):
        head = nn.Linear(1, 1, bias=False)
        head.weight = embedding.weight
        return head
    bits, group_size = embedding.bits, embedding.group_size
    packed = nn.QuantizedLinear(group_size, 1, bias=False, group_size=group_size, bits=bits, mode=embedding.mode)
    for name in ("weight", "scales", "biases"):
        if embedding.get(name) is not None:
            packed[name] = embedding[name]
    return packed


class GatheredLinear(nn.Module):
    """A bias-free projection per expert; each row goes through the expert that is chosen for it."""

    def __init__(self, part: SwitchLinear | QuantizedSwitchLinear) -> None:
        super().__init__()
        self.packed = part if isinstance(part, QuantizedSwitchLinear) else None
        if self.packed is None:
            self.weight = lay_out(part.weight)

    def __call__(self, x: mx.array, chosen: mx.array, ordered: bool) -> mx.array:
        """Rows x (..., 1, in) by the experts `chosen` (...); `ordered` says that these ascend."""
        if self.packed is not None:
            return self.packed(x, chosen, sorted_indices=ordered)
        return mx.gather_mm(x, self.weight, rhs_indices=chosen, sorted_indices=ordered)

    def multiply_groups(self, x: mx.array, ends: list[int]) -> mx.array:
        """Rows (T, in) that are ordered by expert, each expert's up to its end, as one plain product per expert."""
        starts = [0, *ends[:-1]]
        groups = ((expert, x[a:b]) for expert, (a, b) in enumerate(zip(starts, ends, strict=True)) if b > a)
        return mx.concatenate([rows @ self.weight[expert] for expert, rows in groups], axis=0)


def _cut(weight: mx.array, panels: int) -> list[mx.array]:
    """The columns of a weight (in, out) in so many parts of nearly one width."""
    width = -(-weight.shape[1] // panels)
    return list(mx.split(weight, list(range(width, weight.shape[1], width)), axis=1))


def lay_out(weight: mx.array) -> mx.array:
    """A stored weight (..., out, in) as the right-hand side of a product (..., in, out), taken once.

    A GPU reads the stored order best, so there it is a view. The BLAS of MLX's Linux build is a quarter faster when
    the right-hand side lies in its own order (2 x86 cores, MLX 0.32.4), so there it is a copy.
    """
    turned = weight.swapaxes(-1, -2)
    return mx.contiguous(turned) if mx.default_device() == mx.cpu else turned


def _packing(part: Projection) -> tuple[object, ...]:
    if isinstance(part, nn.QuantizedLinear):
        return (part.group_size, part.bits, part.mode, part.get("biases") is not None)
    return (part.weight.dtype,)
