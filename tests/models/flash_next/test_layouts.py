"""Every way in which checkpoints are known to be laid out, against the same numbers in the official one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from server.models.flash_next.checkpoint import LoadedFlashNext, load_flash_next
from server.models.flash_next.layouts import rename, rename_drafter, rename_table
from server.models.flash_next.packed import Piece
from server.models.folder import read_config

FIXTURES = Path(__file__).parents[2] / "fixtures" / "flash_next"
OFFICIAL = "model.language_model."
TABLE = "layers.1.ple.ple_embedding.ngram_embedding"

Tensors = dict[str, mx.array]
Files = dict[str, Tensors]
Stored = Callable[[str], Tensors]
Write = Callable[..., Path]
Check = Callable[..., LoadedFlashNext]


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("model.language_model.layers.0.linear_attn.A_log", "layers.0.linear_attn.A_log"),
        ("language_model.model.layers.0.linear_attn.A_log", "layers.0.linear_attn.A_log"),
        ("language_model.layers.0.linear_attn.A_log", "layers.0.linear_attn.A_log"),
        ("model.layers.0.linear_attn.A_log", "layers.0.linear_attn.A_log"),
        ("lm_head.weight", "lm_head.weight"),
        ("language_model.lm_head.scales", "lm_head.scales"),
        ("model.visual.blocks.0.attn.qkv.weight", None),
        ("model.language_model.visual.merger.norm.weight", None),
        ("visual.patch_embed.proj.weight", None),
        ("vision_tower.blocks.0.norm1.weight", None),
        ("model.language_model.layers.3.mlp.experts.gate_up_proj", "layers.3.mlp.experts.gate_up_proj.weight"),
        ("model.language_model.layers.3.mlp.experts.gate_up_proj_scales", "layers.3.mlp.experts.gate_up_proj.scales"),
        ("language_model.model.layers.3.mlp.experts.down_proj_biases", "layers.3.mlp.experts.down_proj.biases"),
        ("model.layers.3.mlp.experts.down_proj_scale_inv", "layers.3.mlp.experts.down_proj.weight_scale_inv"),
        ("model.layers.3.mlp.experts.7.up_proj.weight_scale_inv", "layers.3.mlp.experts.7.up_proj.weight_scale_inv"),
        ("model.layers.3.mlp.switch_mlp.up_proj.scales", "layers.3.mlp.experts.up_proj.scales"),
        (f"model.language_model.{TABLE}.shard_12.weight", f"{TABLE}.12.weight"),
        (f"model.language_model.{TABLE}.shard_12.scales", f"{TABLE}.12.scales"),
        (f"language_model.model.{TABLE}.shards.3.biases", f"{TABLE}.3.biases"),
        (f"language_model.model.{TABLE}.weight", f"{TABLE}.0.weight"),
        (f"model.language_model.{TABLE}.weight_scale", f"{TABLE}.weight_scale"),
        ("language_model.layers.1.ple.ngram_embedding.scales", f"{TABLE}.0.scales"),
        ("language_model.layers.1.ple.ngram_heads_offsets", "layers.1.ple.ple_embedding.ngram_heads_offsets"),
        ("language_model.layers.1.ple.conv1d_weight", "layers.1.ple.conv1d.weight"),
        ("language_model.model.layers.1.ple.conv_weight", "layers.1.ple.conv1d.weight"),
        ("mtp.fc_hidden.weight", "mtp.fc_hidden.weight"),
        ("language_model.mtp.layers.0.mlp.switch_mlp.up_proj.weight", "mtp.layers.0.mlp.experts.up_proj.weight"),
        ("model.mtp.layers.0.mlp.experts.down_proj", "mtp.layers.0.mlp.experts.down_proj.weight"),
        ("model.language_model.mtp.fc_hidden.weight", "mtp.fc_hidden.weight"),
        ("mtp.hyper_connection_mixer.block_inject_weight.weight", None),
        ("language_model.mtp.hyper_connection_mixer.block_inject_weight.scales", None),
        ("model.language_model.layers.1.ple.hashstats_hits", None),
        ("model.language_model.token_lookup", None),
    ],
)
def test_names_have_one_canonical_form(name: str, canonical: str | None) -> None:
    assert rename(name) == canonical


def test_a_drafters_names_may_lack_their_prefix_and_a_tables_their_layer() -> None:
    for name in ("fc_hidden.weight", "mtp.fc_hidden.weight", "language_model.mtp.fc_hidden.weight"):
        assert rename_drafter(name) == "mtp.fc_hidden.weight"
    assert rename_drafter("layers.0.mlp.switch_mlp.up_proj.weight") == "mtp.layers.0.mlp.experts.up_proj.weight"
    assert rename_drafter("hyper_connection_mixer.block_inject_weight.weight") is None
    assert rename_table("ngram.scales", 1) == f"{TABLE}.0.scales"


def _prefix(tensors: Tensors, trunk: str, head: str = "", mtp: str = "mtp.") -> Tensors:
    """The official names with other beginnings."""
    renamed: Tensors = {}
    for name, tensor in tensors.items():
        if name.startswith(OFFICIAL):
            name = trunk + name.removeprefix(OFFICIAL)
        elif name.startswith("mtp."):
            name = mtp + name.removeprefix("mtp.")
        else:
            name = head + name
        renamed[name] = tensor
    return renamed


def _whole(tensors: Tensors) -> Files:
    return {"model.safetensors": tensors}


def _text_only(tensors: Tensors) -> Files:
    return _whole(_prefix(tensors, "model.", mtp="model.mtp."))


def _mlx(tensors: Tensors) -> Tensors:
    """As mlx-vlm writes it: other names, experts split, convolutions (C, k, 1)."""
    changed: Tensors = {}
    for name, tensor in _prefix(tensors, "language_model.model.", "language_model.", "language_model.mtp.").items():
        if name.endswith("conv1d.weight"):
            changed[name] = tensor.swapaxes(1, 2)
        elif name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), mx.split(tensor, 2, axis=1), strict=True):
                changed[name.replace("experts.gate_up_proj", f"switch_mlp.{part}_proj.weight")] = half
        elif name.endswith("experts.down_proj"):
            changed[name.replace("experts.down_proj", "switch_mlp.down_proj.weight")] = tensor
        else:
            changed[re.sub(r"\.shard_(\d+)", r".shards.\1", name)] = tensor
    return changed


def _numbered_experts(tensors: Tensors) -> Files:
    changed: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for number, expert in enumerate(tensor):
                for part, half in zip(("gate", "up"), mx.split(expert, 2, axis=0), strict=True):
                    changed[name.replace("gate_up_proj", f"{number}.{part}_proj.weight")] = half
        elif name.endswith("experts.down_proj"):
            changed |= {name.replace("down_proj", f"{n}.down_proj.weight"): expert for n, expert in enumerate(tensor)}
        else:
            changed[name] = tensor
    return _whole(changed)


def _turned_experts(tensors: Tensors) -> Files:
    """Experts as the right-hand side of a batched product, as an older transformers held them."""
    return _whole({n: t.swapaxes(1, 2) if ".experts." in n else t for n, t in tensors.items()})


def _join_table(tensors: Tensors, target: str, layer: str = OFFICIAL) -> Tensors:
    shards = [tensors.pop(f"{layer}{TABLE}.shard_{number}.weight") for number in range(4)]
    return tensors | {target: mx.concatenate(shards)}


def _joined_table(tensors: Tensors) -> Files:
    return _whole(_join_table(tensors, f"{OFFICIAL}{TABLE}.weight"))


def _uneven_table(tensors: Tensors) -> Files:
    whole = _join_table(tensors, "table")
    rows = mx.split(whole.pop("table"), [300, 301, 595])
    return _whole(whole | {f"{OFFICIAL}{TABLE}.shard_{number}.weight": part for number, part in enumerate(rows)})


def _many_files(tensors: Tensors) -> Files:
    """A file for every seventh tensor, so that shards and experts lie apart."""
    names = sorted(tensors)
    return {f"model-{i:05}-of-00007.safetensors": {n: tensors[n] for n in names[i::7]} for i in range(7)}


def _jangq(tensors: Tensors) -> Files:
    renamed: Tensors = {}
    for name, tensor in _prefix(_join_table(tensors, f"{OFFICIAL}{TABLE}.weight"), "language_model.").items():
        name = name.replace(".ple.ple_embedding.", ".ple.")
        if name.endswith("ple.conv1d.weight"):
            name, tensor = name.replace("conv1d.weight", "conv1d_weight"), tensor.squeeze(1)
        renamed[name] = tensor
    return _whole(renamed)


def _jundot(tensors: Tensors) -> Files:
    """mlx-vlm names with the head beside them under its official name, experts joined."""
    heads = {name: tensors.pop(name) for name in list(tensors) if name.startswith("mtp.")}
    return _whole(_mlx(tensors) | heads)


def _useless(tensors: Tensors) -> Files:
    extra = (
        "model.visual.blocks.0.norm1.weight",
        "vision_tower.merger.norm.weight",
        "mtp.hyper_connection_mixer.block_inject_weight.weight",
        f"{OFFICIAL}layers.1.ple.hashstats_seen",
    )
    return _whole(tensors | {name: mx.ones((2, 3)) for name in extra})


def _mtplx(tensors: Tensors) -> Files:
    """Head and table in files of their own, norms shifted, here without loss: in float32."""
    kept = re.compile(r".*(linear_attn\.norm|pre_fc_norm_\w+)\.weight")
    changed: Tensors = {}
    for name, tensor in _mlx(_join_table(tensors, "ngram.weight")).items():
        if "norm" in name and name.endswith(".weight") and not kept.fullmatch(name):
            tensor = tensor.astype(mx.float32) + 1
        changed[name.replace("ple.conv1d.weight", "ple.conv_weight")] = tensor
    heads = {name: changed.pop(name) for name in list(changed) if ".mtp." in name}
    table = {"ngram.weight": changed.pop("language_model.ngram.weight")}
    return {
        "model.safetensors": changed,
        "mtp.safetensors": {name.removeprefix("language_model."): tensor for name, tensor in heads.items()},
        "ngram-table.safetensors": table,
    }


RENAMED: list[Callable[[Tensors], Files]] = [
    _text_only,
    lambda tensors: _whole(_mlx(tensors)),
    _jundot,
    _numbered_experts,
    _turned_experts,
    _joined_table,
    _uneven_table,
    _many_files,
    _jangq,
    _useless,
    _mtplx,
]


@pytest.mark.parametrize("arrange", RENAMED, ids=lambda arrange: getattr(arrange, "__name__", "layout").strip("_"))
def test_other_names_and_places_give_the_same_logits(
    stored: Stored, write: Write, check_same: Check, arrange: Callable[[Tensors], Files]
) -> None:
    check_same(write("tiny", arrange(stored("tiny"))))


def test_a_model_that_ties_its_output_head_needs_none(stored: Stored, write: Write, check_same: Check) -> None:
    tied, plain = stored("tiny"), stored("tiny")
    plain["lm_head.weight"] = plain[f"{OFFICIAL}embed_tokens.weight"]
    del tied["lm_head.weight"]
    folder = write("tiny", _whole(tied), lambda raw: raw["text_config"].update(tie_word_embeddings=True))
    like = write("tiny", _whole(plain))
    check_same(folder, like)
    kept = stored("tiny")  # a head that is stored all the same is not used
    check_same(write("tiny", _whole(kept), lambda raw: raw["text_config"].update(tie_word_embeddings=True)), like)


@pytest.mark.parametrize("length", [7, 64, 200])
def test_the_official_eight_bit_floats_equal_the_reference(
    references: Callable[[str], dict[str, npt.NDArray[Any]]], length: int
) -> None:
    folder = FIXTURES / "tiny2_fp8"
    loaded = load_flash_next(folder, read_config(folder), mx.float32)
    tokens = tuple(references("tiny2_transformers")[f"ids_{length}"].tolist())
    stream = loaded.model.run([Piece(loaded.model.build_state(), tokens, keeps_trail=False)])
    known = references("tiny2_fp8_transformers")[f"logits_{length}"]
    assert np.abs(np.array(loaded.model.read_logits(stream)) - known).max() < 1e-4
    assert loaded.has_mtp


def test_a_layout_may_be_that_of_nano_itself(check_same: Check) -> None:
    """The fixture's own layout, so that the comparison above is one with something that runs."""
    check_same(FIXTURES / "tiny")
