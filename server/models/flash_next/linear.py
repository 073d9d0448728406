"""Matrix products of rows with stored weights: several projections of one input in as few calls as packings allow."""

from __future__ import annotations

from itertools import accumulate

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

Projection = nn.Linear | nn.QuantizedLinear


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
