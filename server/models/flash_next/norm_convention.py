"""How a checkpoint stores the weights of its norms: as the factor itself, or as factor - 1.

Official files and most packs store factor - 1; MTPLX's and others store the factor. Neither says so: the numbers do.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import mlx.core as mx

from server.errors import CheckpointInvalid
from server.models.flash_next.layouts import CENTRED_NORM

Centre = Literal["zero", "one"]

TRUNK_SIGN = re.compile(r"layers\.\d+\.attn_hyper_connection\.hc_norm\.weight")
HEAD_SIGN = re.compile(r"mtp\.layers\.\d+\.attn_hyper_connection\.hc_norm\.weight")
"""The norms whose means tell: there is one in each layer, long enough for its mean to be steady."""

BETWEEN = 0.5
"""Means above it speak for factors, others for factors - 1. Source: oMLX, as all bounds here."""
FACTOR_SHARE, FACTOR_MEDIANS = 0.9, (0.75, 1.5)
SHIFTED_SHARE, SHIFTED_MEDIANS = 0.1, (-0.5, 0.25)
"""The share of means above `BETWEEN`, and where their median must lie."""


def centre_norms(tensors: Mapping[str, mx.array], where: str) -> dict[str, mx.array]:
    """All tensors, with norm weights as the factor itself in float32.

    Trunk and drafting head are judged apart, since they may come from different programs.

    Raises:
        CheckpointInvalid: one holds no floating-point numbers, or the means fit neither convention.
    """
    _require_floating(tensors, where)
    means = _means(tensors, TRUNK_SIGN)
    trunk = find_centre(means) if means else "zero"  # without any, tensors are missing, which is told elsewhere
    if trunk is None:
        raise CheckpointInvalid(
            f"{where} stores norm weights neither around 0 nor around 1 (attn_hyper_connection.hc_norm), so what they "
            "mean is unknown; the weights are damaged, or not of this architecture."
        )
    head = find_centre(_means(tensors, HEAD_SIGN)) or trunk
    return {
        name: _read_factor(tensor, head if name.startswith("mtp.") else trunk)
        if CENTRED_NORM.fullmatch(name)
        else tensor
        for name, tensor in tensors.items()
    }


def find_centre(means: Sequence[float]) -> Centre | None:
    """What the norms of these means are stored around; None when that cannot be told."""
    if not means:
        return None
    share = sum(mean > BETWEEN for mean in means) / len(means)
    median = statistics.median(means)
    if share >= FACTOR_SHARE and FACTOR_MEDIANS[0] <= median <= FACTOR_MEDIANS[1]:
        return "one"
    if share <= SHIFTED_SHARE and SHIFTED_MEDIANS[0] <= median <= SHIFTED_MEDIANS[1]:
        return "zero"
    return None


def _require_floating(tensors: Mapping[str, mx.array], where: str) -> None:
    """Here and not with the other tensors: what is read as a factor is floating-point whatever it was."""
    for name, tensor in tensors.items():
        if CENTRED_NORM.fullmatch(name) and not mx.issubdtype(tensor.dtype, mx.floating):
            kind = str(tensor.dtype).rpartition(".")[2]
            raise CheckpointInvalid(f"{where}: {name} is stored as {kind}, and a norm has floating-point weights.")


def _means(tensors: Mapping[str, mx.array], sign: re.Pattern[str]) -> list[float]:
    found = [tensor for name, tensor in tensors.items() if sign.fullmatch(name)]
    return [_mean(tensor) for tensor in found]


def _mean(tensor: mx.array) -> float:
    mean = tensor.astype(mx.float32).mean().item()
    assert isinstance(mean, float)
    return mean


def _read_factor(tensor: mx.array, centre: Centre) -> mx.array:
    """In packs around one some norms are left around zero: those of a low mean."""
    exact = tensor.astype(mx.float32)  # adding 1 in half precision would lose bits of the weight
    return exact if centre == "one" and _mean(tensor) > BETWEEN else exact + 1.0
