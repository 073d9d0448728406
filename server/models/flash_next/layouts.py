"""How checkpoints name the tensors of this architecture, as a table, and the way to one canonical form.

Canonical names are those of the module tree in `model`, with `mtp.` for the multi-token-prediction head and
`layers.N.ple.ple_embedding.` for hash buffers and table shards. What a name says of the tensor's form is in `shapes`.
A new layout is new rows; a pack may mix the rows of several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from server.errors import ModelUnsupported

LAYOUTS = "official, mlx-vlm, oQ, MTPLX, JANGQ and text-only saves of transformers"
"""Who writes names that the table knows, for people."""


class Rule(msgspec.Struct, frozen=True):
    """Names that match `pattern` wholly become `name`; None drops them."""

    pattern: re.Pattern[str]
    name: str | None


def _rules(*pairs: tuple[str, str | None]) -> tuple[Rule, ...]:
    return tuple(Rule(re.compile(pattern), name) for pattern, name in pairs)


PLACES = _rules(
    # Not needed to serve text. Source of the last three: vLLM drops them too.
    (r"(?:model\.)?(?:language_model\.)?visual\..*", None),
    (r"(?:model\.)?vision_tower\..*", None),
    (r"(?:.*\.)?hashstats_.*", None),
    (r"(?:.*\.)?token_lookup.*", None),
    # The drafting head: official and oQ `mtp.`, mlx-vlm `language_model.mtp.`, saves of transformers `model.mtp.`.
    (r"(?:.*\.)?mtp\.hyper_connection_mixer\.block_inject_weight.*", None),
    (r"(?:model\.|language_model\.)*(mtp\..*)", r"\1"),
    (r"(?:model\.|language_model\.)?(lm_head\..*)", r"\1"),
    (r"model\.language_model\.(.*)", r"\1"),  # official
    (r"language_model\.model\.(.*)", r"\1"),  # mlx-vlm, oQ, MTPLX
    (r"language_model\.(.*)", r"\1"),  # JANGQ
    (r"model\.(.*)", r"\1"),  # a text-only save of transformers
)
"""Where a tensor stands in the model. The first rule that matches a name counts; names that none matches stay."""

EXPERT = r"(?:gate_up|gate|up|down)_proj"
PLE = r"(layers\.\d+\.ple)\.(?:ple_embedding\.)?"

PARTS = _rules(
    # Experts: all in one tensor, with or without an ending, or one of mlx-lm's `switch_mlp`.
    (rf"(.*\.experts\.{EXPERT})", r"\1.weight"),
    (rf"(.*\.experts\.{EXPERT})_(scales|biases)", r"\1.\2"),
    (rf"(.*\.experts\.{EXPERT})_scale_inv", r"\1.weight_scale_inv"),
    (r"(.*\.mlp)\.switch_mlp\.(.*)", r"\1.experts.\2"),
    # The n-gram table: in shards (official `shard_N`, mlx-vlm `shards.N`) or whole.
    (rf"{PLE}ngram_embedding\.shard(?:_|s\.)(\d+)", r"\1.ple_embedding.ngram_embedding.\2.weight"),
    (rf"{PLE}ngram_embedding\.shard(?:_|s\.)(\d+)\.(\w+)", r"\1.ple_embedding.ngram_embedding.\2.\3"),
    (rf"{PLE}ngram_embedding\.(weight|scales|biases)", r"\1.ple_embedding.ngram_embedding.0.\2"),
    (rf"{PLE}ngram_embedding\.weight_scale", r"\1.ple_embedding.ngram_embedding.weight_scale"),
    (rf"{PLE}(layer_multipliers|ngram_heads_vocab_sizes|ngram_heads_offsets)", r"\1.ple_embedding.\2"),
    # The convolution of the n-gram layer, as MTPLX and JANGQ name it.
    (rf"{PLE}conv(?:1d)?_weight", r"\1.conv1d.weight"),
)
"""What a tensor is at its place: applied to what `PLACES` gave, in the same way."""

TRUNK_TENSOR = re.compile(r"layers\.\d+\..*")
SIDECAR_TABLE = re.compile(r"ngram\.(weight|scales|biases)")
"""Names in MTPLX's `ngram-table.safetensors`, which say nothing of a layer: the table is that of the first one."""

CENTRED_NORM = re.compile(
    r".*(?:hc_norm|q_norm|k_norm|q_layernorm|k_layernorm|norm_key|norm_query|norm_conv|pre_fc_norm_\w+)\.weight"
)
"""Norms that may be stored around zero; the linear attention's own norm is always stored as is."""

FLOAT32_ALWAYS = re.compile(r".*(?:norm\w*\.weight|A_log|dt_bias)")
"""Small tensors that enter float32 arithmetic; held so in every dtype."""


def rename(name: str) -> str | None:
    """The canonical name of a stored one, or None when the tensor is not needed."""
    placed = _apply(PLACES, name)
    return None if placed is None else _apply(PARTS, placed)


def rename_drafter(name: str) -> str | None:
    """The same in a folder that holds a drafting head alone, whose names may lack `mtp.`."""
    bare = re.sub(r"^(?:model\.|language_model\.)*(?:mtp\.)?", "", name)
    return rename(f"mtp.{bare}")


def rename_table(name: str, layer: int) -> str | None:
    """The same in the file of an n-gram table alone, which is that of `layer`."""
    if match := SIDECAR_TABLE.fullmatch(name):
        return f"layers.{layer}.ple.ple_embedding.ngram_embedding.0.{match[1]}"
    return rename(name)


def require_known(names: Iterable[str], stored: Iterable[str], where: str) -> None:
    """Raise ModelUnsupported when none of the canonical `names` is that of a layer; `stored` are those in the files."""
    if not any(TRUNK_TENSOR.fullmatch(name) for name in names):
        raise ModelUnsupported(
            f"{where} names its tensors in no way that is known here (for example {min(stored, default='none at all')}"
            f"); known are: {LAYOUTS}."
        )


def _apply(rules: tuple[Rule, ...], name: str) -> str | None:
    for rule in rules:
        if match := rule.pattern.fullmatch(name):
            return None if rule.name is None else match.expand(rule.name)
    return name
