"""Packed and damaged checkpoints that cannot be read: each is told in one plain sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from server.errors import CheckpointInvalid, ModelError, ModelUnsupported
from server.models.flash_next.checkpoint import load_flash_next
from server.models.folder import read_config

OFFICIAL = "model.language_model."
TABLE = f"{OFFICIAL}layers.1.ple.ple_embedding.ngram_embedding"
EXPERTS = f"{OFFICIAL}layers.2.mlp.experts."
PARTS: tuple[str, ...] = ("weight", "scales", "biases")

Tensors = dict[str, mx.array]
Stored = Callable[[str], Tensors]
Write = Callable[..., Path]


def check_refused(folder: Path, kind: type[ModelError], *words: str) -> None:
    """One plain sentence of this kind that says these words."""
    with pytest.raises(ModelError) as caught:
        load_flash_next(folder, read_config(folder), mx.float32)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 500, message
    for word in words:
        assert word in message, message


def _nvfp4_modelopt(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".experts." in name]:
        weight = tensors.pop(name)
        tensors[f"{name}.weight"] = mx.zeros((*weight.shape[:-1], weight.shape[-1] // 2), mx.uint8)
        tensors[f"{name}.weight_scale"] = mx.zeros((*weight.shape[:-1], weight.shape[-1] // 16), mx.uint8)
        tensors[f"{name}.weight_scale_2"] = tensors[f"{name}.input_scale"] = mx.array([1.0])


def _lose_scale(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = mx.quantize(tensors["lm_head.weight"], 32, 4)[0]


def _lose_biases(tensors: Tensors) -> None:
    parts = mx.quantize(tensors["lm_head.weight"], 32, 4)
    tensors["lm_head.weight"], tensors["lm_head.scales"] = parts[:2]


def _odd_bits(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = mx.zeros((512, 14), mx.uint32)
    tensors["lm_head.scales"] = tensors["lm_head.biases"] = mx.zeros((512, 2))


def _scale_of_other_blocks(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = mx.to_fp8(tensors["lm_head.weight"])
    tensors["lm_head.weight_scale_inv"] = mx.ones((2, 1))


def _experts_packed_apart(tensors: Tensors) -> None:
    weight = tensors.pop(f"{EXPERTS}down_proj")
    for number, expert in enumerate(weight):
        parts = mx.quantize(expert, 32, 8 if number == 3 else 4)
        for ending, part in zip(PARTS, parts, strict=True):
            tensors[f"{EXPERTS}{number}.down_proj.{ending}"] = part


def _lose_expert(tensors: Tensors) -> None:
    weight = tensors.pop(f"{EXPERTS}down_proj")
    tensors.update({f"{EXPERTS}{n}.down_proj.weight": weight[n] for n in range(8) if n != 3})


def _lose_half(tensors: Tensors) -> None:
    tensors[f"{EXPERTS}gate_proj.weight"] = tensors.pop(f"{EXPERTS}gate_up_proj")[:, :96]


def _table_without_scale(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(TABLE)]:
        tensors[name] = mx.to_fp8(tensors[name])


def _table_of_two_kinds(tensors: Tensors) -> None:
    tensors[f"{TABLE}.shard_1.weight"] = tensors[f"{TABLE}.shard_1.weight"].astype(mx.float16)


def _table_of_other_width(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(TABLE)]:
        tensors[name] = tensors[name][:, :31]


def _table_of_odd_groups(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(TABLE)]:
        rows, base = tensors.pop(name).shape[0], name.removesuffix(".weight")
        tensors[f"{base}.weight"] = mx.zeros((rows, 4), mx.uint32)
        tensors[f"{base}.scales"] = tensors[f"{base}.biases"] = mx.zeros((rows, 3))


def _table_that_is_short(tensors: Tensors) -> None:
    tensors[f"{TABLE}.shard_3.weight"] = tensors[f"{TABLE}.shard_3.weight"][:100]


def _twice(tensors: Tensors) -> None:
    tensors["language_model.lm_head.weight"] = tensors["lm_head.weight"]


def _norms_of_no_kind(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.endswith("hc_norm.weight")]:
        tensors[name] = tensors[name] + 5


@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (_nvfp4_modelopt, ModelUnsupported, ("NVFP4", "weight_scale_2", "more", "mode nvfp4")),
        (_lose_scale, CheckpointInvalid, ("lm_head.weight", "[512, 8]", "[512, 64]")),
        (_lose_biases, CheckpointInvalid, ("lm_head.biases",)),
        (_odd_bits, ModelUnsupported, ("quantized",)),
        (_scale_of_other_blocks, CheckpointInvalid, ("lm_head.weight", "[2, 1]", "[4, 1]")),
        (_experts_packed_apart, ModelUnsupported, ("layers.2.mlp.experts.down_proj.weight", "different ways")),
        (_lose_expert, CheckpointInvalid, ("layers.2.mlp.experts.down_proj.weight", "lacks")),
        (_lose_half, CheckpointInvalid, ("gate_proj.weight", "lacks", "up_proj.weight")),
        (_table_without_scale, CheckpointInvalid, ("n-gram table of layer 1", "weight_scale")),
        (_table_of_two_kinds, CheckpointInvalid, ("n-gram table of layer 1", "dtypes")),
        (_table_of_other_width, CheckpointInvalid, ("n-gram table of layer 1", "31", "32")),
        (_table_of_odd_groups, CheckpointInvalid, ("n-gram table of layer 1", "3 groups")),
        (_table_that_is_short, CheckpointInvalid, ("n-gram table of layer 1", "772 rows")),
        (_twice, CheckpointInvalid, ("lm_head.weight", "twice", "language_model.lm_head.weight")),
        (_norms_of_no_kind, CheckpointInvalid, ("hc_norm", "around")),
    ],
    ids=lambda value: getattr(value, "__name__", "").strip("_") or None,
)
def test_what_cannot_be_read_is_told_in_a_sentence(
    stored: Stored,
    write: Write,
    damage: Callable[[Tensors], None],
    kind: type[ModelError],
    words: tuple[str, ...],
) -> None:
    tensors = stored("tiny")
    damage(tensors)
    check_refused(write("tiny", {"model.safetensors": tensors}), kind, *words)


def test_other_eight_bit_floats_are_refused(write: Write, stored: Stored) -> None:
    tensors = stored("tiny")
    tensors["lm_head.weight"] = mx.to_fp8(tensors["lm_head.weight"])
    folder = write("tiny", {"model.safetensors": tensors}, eights={"lm_head.weight"})
    check_refused(folder, ModelUnsupported, "without a scale", "lm_head.weight")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"F8_E4M3", b"F8_E5M2"))
    check_refused(folder, ModelUnsupported, "E5M2", "lm_head.weight")
