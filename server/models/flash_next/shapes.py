"""Canonically named tensors in canonical form: 8-bit floats unpacked, experts stacked and joined, axes in their order.

All lazy: bytes are read when the model's weights are evaluated. Norms are told apart in `norm_convention`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set

import mlx.core as mx

from server.errors import CheckpointInvalid, ModelUnsupported
from server.models.flash_next.config import FlashNextConfig

BLOCK = 128
"""Rows and columns that share a scale of the FP8 release. Source: `weight_block_size` in its quantization_config."""

Tensors = dict[str, mx.array]

NUMBERED_EXPERT = re.compile(r"(?P<head>.*\.experts\.)(?P<part>\d+)\.(?P<tail>(?:gate|up|down)_proj\.\w+)")
"""One expert of its own; all of a kind are stacked in ascending order."""
SPLIT_EXPERTS = re.compile(r"(?P<head>.*\.experts\.)(?P<part>gate|up)_proj\.(?P<tail>\w+)")
"""Gate and up projection apart; joined, gate rows first."""
EXPERT_WEIGHT = re.compile(r"(?P<head>.*\.experts\.)(?P<part>gate_up|gate|up|down)_proj\.weight")

PROJECTIONS = ("gate", "up")


def shape_tensors(tensors: Mapping[str, mx.array], eights: Set[str], config: FlashNextConfig, where: str) -> Tensors:
    """The tensors in canonical form; `eights` names those that are 8-bit floats, which MLX reads as bytes.

    Gate and up projections of experts that are packed in different ways stay apart, see `split_heads`.

    Raises:
        CheckpointInvalid: a part is missing, or a scale does not fit its weight.
        ModelUnsupported: 8-bit floats without scales.
    """
    shaped = dict(tensors)
    _unpack_eights(shaped, eights, where)
    _stack_experts(shaped, where)
    _turn_experts(shaped, config)
    _join_experts(shaped, where)
    for name, tensor in shaped.items():
        if name.endswith("conv1d.weight"):
            # (C, 1, k), (C, k, 1) or (C, k): what is not the channels is the taps.
            shaped[name] = tensor.reshape(tensor.shape[0], -1, 1) if tensor.ndim in (2, 3) else tensor
    return shaped


def split_heads(tensors: Mapping[str, mx.array]) -> list[str]:
    """Names of the expert modules, without the last dot, whose gate and up projections stayed apart."""
    return sorted({match["head"][:-1] for name in tensors if (match := SPLIT_EXPERTS.fullmatch(name))})


def unpack_blocks(codes: mx.array, scales: mx.array) -> mx.array:
    """Float32 weights (.., out, in) of 8-bit floats and their scales, one for each block or one for all."""
    weight = mx.from_fp8(codes, dtype=mx.float32)
    scales = scales.astype(mx.float32)
    if scales.size == 1:
        return weight * scales.reshape(())
    for axis in (-1, -2):
        scales = mx.repeat(scales, BLOCK, axis=axis)
    return weight * scales[..., : weight.shape[-2], : weight.shape[-1]]


def _unpack_eights(tensors: Tensors, eights: Set[str], where: str) -> None:
    for name in sorted(eights & tensors.keys()):
        scales = tensors.pop(f"{name}_scale_inv", None)
        if scales is None:
            scales = tensors.pop(f"{name}_scale", None)
        if scales is None:
            raise ModelUnsupported(f"{where} holds 8-bit floats without a scale ({name}), which cannot be read.")
        codes = tensors[name]
        wanted = (*codes.shape[:-2], *(math.ceil(length / BLOCK) for length in codes.shape[-2:]))
        if scales.size != 1 and scales.shape != wanted:
            raise CheckpointInvalid(
                f"{where}: the scales of {name} have shape {list(scales.shape)}, its blocks call for {list(wanted)}."
            )
        tensors[name] = unpack_blocks(codes, scales)


def _stack_experts(tensors: Tensors, where: str) -> None:
    """All experts of a kind as one tensor (E, ..)."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in tensors:
        if match := NUMBERED_EXPERT.fullmatch(name):
            groups.setdefault(match["head"] + match["tail"], []).append((int(match["part"]), name))
    for target, members in groups.items():
        ordered = sorted(members)
        if [number for number, _ in ordered] != list(range(len(ordered))):
            raise CheckpointInvalid(f"{where} lacks one of the experts of {target}.")
        parts = [tensors.pop(name) for _, name in ordered]
        if not _alike(parts):
            raise ModelUnsupported(f"{where} packs the experts of {target} in different ways, which cannot be run.")
        tensors[target] = mx.stack(parts)


def _turn_experts(tensors: Tensors, config: FlashNextConfig) -> None:
    """Weights that are stored as the right-hand side of a product (E, in, out), put as (E, out, in).

    Where one kind has a square shape, which says nothing, the other one tells: no width makes both square.
    """
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    stored: dict[str, Callable[[mx.array], bool]] = {
        "gate_up": lambda weight: weight.shape[1:] == (hidden, 2 * inner) and hidden != 2 * inner,
        "gate": lambda weight: weight.shape[1:] == (hidden, inner) and hidden != inner,
        "up": lambda weight: weight.shape[1:] == (hidden, inner) and hidden != inner,
        "down": lambda weight: weight.shape[1:] == (inner, hidden) and hidden != inner,
    }
    by_head: dict[str, list[str]] = {}
    turned: set[str] = set()
    for name, weight in tensors.items():
        if (match := EXPERT_WEIGHT.fullmatch(name)) and weight.ndim == 3 and mx.issubdtype(weight.dtype, mx.floating):
            by_head.setdefault(match["head"], []).append(name)
            if stored[match["part"]](weight):
                turned.add(match["head"])
    for head in turned:
        for name in by_head[head]:
            tensors[name] = tensors[name].swapaxes(1, 2)


def _join_experts(tensors: Tensors, where: str) -> None:
    """Gate and up projection as one tensor, where both are packed alike."""
    heads: dict[str, dict[str, list[str]]] = {}
    for name in tensors:
        if match := SPLIT_EXPERTS.fullmatch(name):
            heads.setdefault(match["head"], {}).setdefault(match["tail"], []).append(match["part"])
    for head, tails in heads.items():
        if len(parts := tails.get("weight", [])) == 1:
            other = "up" if parts[0] == "gate" else "gate"
            raise CheckpointInvalid(f"{where} has {head}{parts[0]}_proj.weight, but lacks {head}{other}_proj.weight.")
        if any(len(parts) < len(PROJECTIONS) for parts in tails.values()):
            continue  # packed in different ways
        pairs = {tail: [tensors[f"{head}{part}_proj.{tail}"] for part in PROJECTIONS] for tail in tails}
        if not all(_alike(pair) for pair in pairs.values()):
            continue
        for tail, pair in pairs.items():
            for part in PROJECTIONS:
                del tensors[f"{head}{part}_proj.{tail}"]
            tensors[f"{head}gate_up_proj.{tail}"] = mx.concatenate(pair, axis=-2)


def _alike(parts: Sequence[mx.array]) -> bool:
    return len({(part.shape, part.dtype) for part in parts}) == 1
