"""Quantized and 8-bit checkpoints: each gives the logits of the plain checkpoint that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import pytest

from server.models.flash_next.checkpoint import LoadedFlashNext, load_flash_next
from server.models.flash_next.config import parse_config
from server.models.flash_next.shapes import shape_tensors, unpack_blocks
from server.models.folder import read_config

FIXTURES = Path(__file__).parents[2] / "fixtures" / "flash_next"
OFFICIAL = "model.language_model."
TABLE = f"{OFFICIAL}layers.1.ple.ple_embedding.ngram_embedding"
EXPERTS = f"{OFFICIAL}layers.2.mlp.experts."
CLOSE = 2e-4
"""Products of packed weights sum in another order than those of the plain ones."""

PARTS: tuple[str, ...] = ("weight", "scales", "biases")

Tensors = dict[str, mx.array]
Stored = Callable[[str], Tensors]
Write = Callable[..., Path]
Check = Callable[..., LoadedFlashNext]
Mode = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]


def pack(tensor: mx.array, bits: int, group_size: int, mode: Mode = "affine") -> tuple[Tensors, mx.array]:
    """A weight's packed parts by their endings, and what they stand for."""
    exact = tensor.astype(mx.float32)
    parts = mx.quantize(exact, group_size=group_size, bits=bits, mode=mode)
    named: Tensors = dict(zip(PARTS, parts, strict=False))
    return named, mx.dequantize(*parts, group_size=group_size, bits=bits, mode=mode, dtype=mx.float32)


def pack_all(
    tensors: Tensors, wanted: str, bits: int, group_size: int, mode: Mode = "affine"
) -> tuple[Tensors, Tensors]:
    """The tensors with those whose names (without `.weight`) match packed, and the same unpacked again."""
    packed, plain = dict(tensors), dict(tensors)
    for name in tensors:
        base = name.removesuffix(".weight")
        if re.fullmatch(wanted, base):
            parts, plain[name] = pack(packed.pop(name), bits, group_size, mode)
            packed |= {f"{base}.{kind}": part for kind, part in parts.items()}
    assert packed.keys() != tensors.keys()
    return packed, plain


MODULES = (
    r"lm_head|.*embed_tokens",
    r".*mlp\.experts\.gate_up_proj",
    r".*(self_attn|linear_attn)\.\w+_proj|.*in_proj_\w+",
    r".*mlp\.(gate|shared_expert_gate|shared_expert\.(gate|up)_proj)",
    r".*(input_mix_weight_down|block_inject_weight)",
    r".*\.ple\.(key|value)_proj",
    r"mtp\.fc_\w+",
)
MODES: tuple[tuple[int, int, Mode], ...] = ((8, 64, "affine"), (4, 32, "mxfp4"), (8, 32, "mxfp8"), (4, 16, "nvfp4"))


@pytest.mark.parametrize(
    ("wanted", "bits", "group_size", "mode"),
    [(wanted, 4, 32, "affine") for wanted in MODULES] + [(wanted, *mode) for wanted in MODULES[:2] for mode in MODES],
)
def test_every_mode_of_mlx_stands_for_what_it_unpacks_to(
    stored: Stored, write: Write, check_same: Check, wanted: str, bits: int, group_size: int, mode: Mode
) -> None:
    packed, plain = pack_all(stored("tiny"), wanted, bits, group_size, mode)
    like = write("tiny", {"model.safetensors": plain})
    check_same(write("tiny", {"model.safetensors": packed}), like, tolerance=CLOSE)


@pytest.mark.parametrize(
    ("bits", "group_size", "mode"),
    [(4, 32, "affine"), (8, 32, "affine"), (4, 32, "mxfp4"), (8, 32, "mxfp8"), (4, 16, "nvfp4")],
)
@pytest.mark.parametrize("names", ["shard_{}", "file"])
def test_packed_rows_of_the_table_stand_for_what_they_unpack_to(
    stored: Stored, write: Write, check_same: Check, names: str, bits: int, group_size: int, mode: Mode
) -> None:
    packed, plain = pack_all(stored("tiny"), rf"{re.escape(TABLE)}\.shard_\d", bits, group_size, mode)
    files = {"model.safetensors": packed}
    if names == "file":
        shards = [[packed.pop(f"{TABLE}.shard_{i}.{kind}", None) for i in range(4)] for kind in PARTS]
        parts = zip(PARTS, ([part for part in group if part is not None] for group in shards), strict=True)
        files["ngram-table.safetensors"] = {f"ngram.{kind}": mx.concatenate(part) for kind, part in parts if part}
    like = write("tiny", {"model.safetensors": plain})
    folder = write("tiny", files, lambda raw: raw["text_config"].update(ngram_sidecar=names == "file"))
    check_same(folder, like)


def test_shapes_count_and_not_the_map(copy_checkpoint: Callable[[str], Path], check_same: Check) -> None:
    folder = copy_checkpoint("tiny_mlx_q4")
    raw = json.loads((folder / "config.json").read_text())
    wrong = {"group_size": 128, "bits": 2, "language_model.lm_head": False, "lm_head": {"bits": 3, "group_size": 32}}
    raw["quantization"] = raw["quantization_config"] = wrong
    (folder / "config.json").write_text(json.dumps(raw))
    check_same(folder, "tiny_mlx_q4", drafts=False)
    for settings in ("none", None, {}, []):
        raw["quantization"] = raw["quantization_config"] = settings
        (folder / "config.json").write_text(json.dumps(raw))
        check_same(folder, "tiny_mlx_q4", drafts=False)


@pytest.mark.parametrize("form", ["joined", "underscored", "numbered", "split"])
def test_packed_experts_may_be_joined_split_or_apart(
    stored: Stored, write: Write, check_same: Check, form: str
) -> None:
    packed, plain = dict(stored("tiny")), dict(stored("tiny"))
    for kind in ("gate_up", "down"):
        weight = packed.pop(f"{EXPERTS}{kind}_proj")
        parts, plain[f"{EXPERTS}{kind}_proj"] = pack(weight, 4, 32)
        for ending, part in parts.items():
            packed |= _arrange(form, kind, ending, part)
    like = write("tiny", {"model.safetensors": plain})
    check_same(write("tiny", {"model.safetensors": packed}), like, tolerance=CLOSE)


def _arrange(form: str, kind: str, ending: str, part: mx.array) -> Tensors:
    if form == "joined":
        return {f"{EXPERTS}{kind}_proj.{ending}": part}
    if form == "underscored":
        return {f"{EXPERTS}{kind}_proj" + ("" if ending == "weight" else f"_{ending}"): part}
    halves = {"down": part}
    if kind == "gate_up":
        halves = dict(zip(("gate", "up"), mx.split(part, 2, axis=1), strict=True))
    if form == "split":
        head = EXPERTS.replace("experts", "switch_mlp")
        return {f"{head}{half}_proj.{ending}": rows for half, rows in halves.items()}
    return {f"{EXPERTS}{n}.{half}_proj.{ending}": rows[n] for half, rows in halves.items() for n in range(8)}


@pytest.mark.parametrize(("bits", "mode"), [((8, 4), ("affine", "affine")), ((4, 4), ("mxfp4", "affine"))])
def test_gate_and_up_projection_may_be_packed_in_different_ways(
    stored: Stored, write: Write, check_same: Check, bits: tuple[int, int], mode: tuple[Mode, Mode]
) -> None:
    packed, plain = dict(stored("tiny")), dict(stored("tiny"))
    halves = mx.split(packed.pop(f"{EXPERTS}gate_up_proj"), 2, axis=1)
    unpacked: list[mx.array] = []
    for half, rows, width, kind in zip(("gate", "up"), halves, bits, mode, strict=True):
        parts, exact = pack(rows, width, 32, kind)
        unpacked.append(exact)
        packed |= {f"{EXPERTS}{half}_proj.{ending}": part for ending, part in parts.items()}
    plain[f"{EXPERTS}gate_up_proj"] = mx.concatenate(unpacked, axis=1)
    like = write("tiny", {"model.safetensors": plain})
    check_same(write("tiny", {"model.safetensors": packed}), like, tolerance=CLOSE)


def test_eight_bit_floats_equal_their_values(stored: Stored, write: Write, check_same: Check) -> None:
    codes, plain, eights = dict(stored("tiny")), dict(stored("tiny")), set[str]()
    for name in list(codes):
        if re.fullmatch(r".*(experts\.\w+_proj|linear_attn\.out_proj\.weight)", name):
            weight = codes[name].astype(mx.float32) * 8
            blocks = [-(-length // 128) for length in weight.shape[-2:]]
            scales = mx.random.uniform(0.05, 0.2, (*weight.shape[:-2], *blocks))
            codes[name], codes[f"{name}_scale_inv"] = mx.to_fp8(weight), scales
            plain[name] = unpack_blocks(codes[name], scales)
            eights.add(name)
    for name in [name for name in codes if name.startswith(TABLE)]:
        codes[name] = mx.to_fp8(codes[name].astype(mx.float32) * 4)
        plain[name] = mx.from_fp8(codes[name], dtype=mx.float32) * 0.25
        eights.add(name)
    codes[f"{TABLE}.weight_scale"] = mx.array([0.25], mx.bfloat16)
    like = write("tiny", {"model.safetensors": plain})
    check_same(write("tiny", {"model.safetensors": codes}, eights=eights), like)
    # Some packs say only that they are bytes.
    check_same(write("tiny", {"model.safetensors": codes}), like)


@pytest.mark.parametrize("shape", [(300, 200), (128, 128), (2, 129, 257), (5, 3)])
def test_each_block_has_its_own_scale(shape: tuple[int, ...]) -> None:
    values = np.array(mx.from_fp8(mx.to_fp8(mx.random.normal(shape)), dtype=mx.float32))
    rows, columns = (-(-length // 128) for length in shape[-2:])
    scales = np.random.default_rng(1).uniform(0.5, 2, (*shape[:-2], rows, columns)).astype(np.float32)
    expected = values * scales.repeat(128, -2).repeat(128, -1)[..., : shape[-2], : shape[-1]]
    codes = mx.to_fp8(mx.array(values))
    assert np.array_equal(np.array(unpack_blocks(codes, mx.array(scales))), expected)
    one = unpack_blocks(codes, mx.array([2.0], mx.bfloat16))
    assert np.array_equal(np.array(one), values * 2)


def test_square_experts_are_turned_as_the_others_of_their_layer_are(stored: Stored) -> None:
    raw = read_config(FIXTURES / "tiny")
    head = "layers.0.mlp.experts."
    for inner in (32, 64):  # gate_up is square, then down
        raw["text_config"]["moe_intermediate_size"] = inner
        config = parse_config(raw, "config.json")
        upright = {
            f"{head}gate_up_proj.weight": mx.random.normal((2, 2 * inner, 64)),
            f"{head}down_proj.weight": mx.random.normal((2, 64, inner)),
        }
        turned = {name: tensor.swapaxes(1, 2) for name, tensor in upright.items()}
        for given in (upright, turned):
            shaped = shape_tensors(given, set(), config, "here")
            assert all(mx.array_equal(shaped[name], tensor).item() for name, tensor in upright.items())


def test_the_dtype_is_the_one_that_is_not_packed(write: Write, stored: Stored) -> None:
    packed, _ = pack_all(stored("tiny"), r"lm_head|.*embed_tokens", 4, 16, "nvfp4")
    kinds: dict[str, Any] = {}
    for name, tensors in {"plain": stored("tiny"), "nvfp4": packed}.items():
        folder = write("tiny", {"model.safetensors": tensors})
        kinds[name] = load_flash_next(folder, read_config(folder), None).dtype
    assert kinds == {"plain": mx.bfloat16, "nvfp4": mx.bfloat16}
