"""How checkpoints name and shape the tensors of this architecture, as a table, and the way to one canonical form.

Canonical names are those of the module tree in `model`, with `mtp.` for the multi-token-prediction head and
`layers.N.ple.ple_embedding.` for hash buffers and table shards. A new layout is a new row of `LAYOUTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import mlx.core as mx
import msgspec

from server.errors import CheckpointInvalid, ModelUnsupported


class Rule(msgspec.Struct, frozen=True):
    """Names that match `pattern` wholly become `name`; None drops them."""

    pattern: re.Pattern[str]
    name: str | None


class Layout(msgspec.Struct, frozen=True):
    """One convention of names and norms."""

    id: str
    signature: re.Pattern[str]
    """A name that only this layout has."""
    rules: tuple[Rule, ...]
    """The first rule that matches a name counts; names that none matches stay."""
    zero_centred_norms: bool
    """Norm weights are stored as factor - 1 (all but the linear attention's own)."""


def _rules(*pairs: tuple[str, str | None]) -> tuple[Rule, ...]:
    return tuple(Rule(re.compile(pattern), name) for pattern, name in pairs)


MTP_UNUSED = (r"(?:model\.)?(?:language_model\.)?mtp\.hyper_connection_mixer\.block_inject_weight.*", None)
"""Some packs carry it; the last mixer writes nothing back. Source: vLLM drops it too."""

LAYOUTS = (
    Layout(
        id="official",
        signature=re.compile(r"model\.language_model\.layers\.\d+\..*"),
        rules=_rules(
            (r"(model\.)?(language_model\.)?visual\..*", None),
            MTP_UNUSED,
            (r"model\.language_model\.(.*\.experts\.(?:gate_up|down)_proj)", r"\1.weight"),
            (r"(?:model\.)?(mtp\..*\.experts\.(?:gate_up|down)_proj)", r"\1.weight"),
            (r"model\.(mtp\..*)", r"\1"),
            (r"model\.language_model\.(.*\.ngram_embedding)\.shard_(\d+)\.(\w+)", r"\1.\2.\3"),
            (r"model\.language_model\.(.*)", r"\1"),
        ),
        zero_centred_norms=True,
    ),
    Layout(
        id="mlx-vlm",
        signature=re.compile(r"language_model\.model\.layers\.\d+\..*"),
        rules=_rules(
            (r"vision_tower\..*", None),
            MTP_UNUSED,
            (r"language_model\.model\.(.*\.ngram_embedding)\.shards\.(\d+)\.(\w+)", r"\1.\2.\3"),
            (r"language_model\.model\.(.*)\.switch_mlp\.(.*)", r"\1.experts.\2"),
            (r"language_model\.mtp\.(.*)\.switch_mlp\.(.*)", r"mtp.\1.experts.\2"),
            (r"language_model\.model\.(.*)", r"\1"),
            (r"language_model\.(.*)", r"\1"),
        ),
        zero_centred_norms=True,
    ),
)

CENTRED_NORM = re.compile(
    r".*(?:hc_norm|q_norm|k_norm|q_layernorm|k_layernorm|norm_key|norm_query|norm_conv|pre_fc_norm_\w+)\.weight"
)
"""Norms that the zero-centred convention applies to; the linear attention's own norm is stored as is."""

FLOAT32_ALWAYS = re.compile(r".*(?:norm\w*\.weight|A_log|dt_bias)")
"""Small tensors that enter float32 arithmetic; held so in every dtype."""


NUMBERED_EXPERT = re.compile(r"(?P<head>.*\.experts\.)(?P<part>\d+)\.(?P<tail>(?:gate|up|down)_proj\.\w+)")
"""One expert of its own; all of a kind are stacked in ascending order."""
SPLIT_EXPERTS = re.compile(r"(?P<head>.*\.experts\.)(?P<part>gate|up)_proj\.(?P<tail>\w+)")
"""Gate and up projection apart; joined, gate rows first."""


def find_layout(names: Iterable[str], where: str) -> Layout:
    """The layout whose signature some name bears.

    Raises:
        ModelUnsupported: no layout in the table fits.
    """
    known = list(names)
    for layout in LAYOUTS:
        if any(layout.signature.fullmatch(name) for name in known):
            return layout
    raise ModelUnsupported(
        f"{where} names its tensors in no way that is known here (for example {min(known, default='none at all')}); "
        f"known are: {', '.join(layout.id for layout in LAYOUTS)}."
    )


def rename(layout: Layout, name: str) -> str | None:
    """The canonical name of a stored one, or None when the tensor is not needed."""
    for rule in layout.rules:
        if match := rule.pattern.fullmatch(name):
            return None if rule.name is None else match.expand(rule.name)
    return name


def shape_tensors(layout: Layout, tensors: Mapping[str, mx.array], where: str) -> dict[str, mx.array]:
    """Canonically named tensors in canonical shapes: experts stacked and joined, convolutions (C, k, 1)."""
    shaped = {name: _shape_one(layout, name, tensor) for name, tensor in tensors.items()}
    _combine(shaped, NUMBERED_EXPERT, lambda parts: mx.stack(parts), where)
    _combine(shaped, SPLIT_EXPERTS, lambda parts: mx.concatenate(parts, axis=-2), where)
    return shaped


def _shape_one(layout: Layout, name: str, tensor: mx.array) -> mx.array:
    if name.endswith("conv1d.weight") and tensor.ndim == 3 and tensor.shape[-1] != 1:
        return tensor.swapaxes(1, 2)
    if CENTRED_NORM.fullmatch(name):
        return tensor.astype(mx.float32) + (1.0 if layout.zero_centred_norms else 0.0)
    return tensor


def _combine(
    tensors: dict[str, mx.array], pattern: re.Pattern[str], join: Callable[[list[mx.array]], mx.array], where: str
) -> None:
    """Replace all tensors that differ only in the pattern's `part` by their join, in the order of the parts."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in tensors:
        if match := pattern.fullmatch(name):
            target = f"{match['head']}{_joined_tail(match)}"
            order = int(match["part"]) if match["part"].isdigit() else ("gate", "up").index(match["part"])
            groups.setdefault(target, []).append((order, name))
    for target, members in groups.items():
        parts = [tensors.pop(name) for _, name in sorted(members)]
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            raise ModelUnsupported(f"{where} packs the parts of {target} in different ways, which is not built.")
        if [order for order, _ in sorted(members)] != list(range(len(members))):
            raise CheckpointInvalid(f"{where} lacks a part of {target}.")
        tensors[target] = join(parts)


def _joined_tail(match: re.Match[str]) -> str:
    return f"gate_up_proj.{match['tail']}" if match.re is SPLIT_EXPERTS else match["tail"]
