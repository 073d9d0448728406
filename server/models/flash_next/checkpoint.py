"""From a checkpoint folder to a `FlashNext` ready to run: names, shapes, packings and dtypes checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
from mlx_lm.utils import infer_quant_config

from server.errors import CheckpointInvalid, ModelUnsupported
from server.models.flash_next.config import FlashNextConfig, parse_config
from server.models.flash_next.layouts import FLOAT32_ALWAYS
from server.models.flash_next.model import FlashNext
from server.models.flash_next.moe import Experts
from server.models.flash_next.ngram_parts import HASH_BUFFER, TABLE_SCALE, TABLE_TENSOR, build_hashes, build_tables
from server.models.flash_next.norm_convention import centre_norms
from server.models.flash_next.shapes import shape_tensors, split_heads
from server.models.flash_next.sources import Infos, collect_tensors
from server.models.tensor_files import list_names
from server.models.weights import count_bytes, name_arrays

DTYPE_SIGNS = ("lm_head.weight", "lm_head.scales", "embed_tokens.weight", "embed_tokens.scales")
"""Tensors whose dtype is the one that the checkpoint's own arithmetic is meant for; the first floating one counts."""

Tensors = dict[str, mx.array]


class LoadedFlashNext(msgspec.Struct, frozen=True):
    """A model and what its checkpoint says of it."""

    model: FlashNext
    config: FlashNextConfig
    dtype: mx.Dtype
    has_mtp: bool
    parameters: int
    """Numbers that are served, the n-gram table's with them."""
    weights_bytes: int
    """Bytes of the arrays in memory and of the table in the files."""


def load_flash_next(
    folder: Path, raw: dict[str, Any], dtype: mx.Dtype | None, drafter: Path | None = None
) -> LoadedFlashNext:
    """Load the folder's checkpoint; `raw` is its parsed config.json, dtype None keeps the checkpoint's own.

    `drafter` is a folder or file with a drafting head that is used in place of the checkpoint's.

    Raises:
        ModelNotFound: there are no weights.
        CheckpointInvalid: a tensor is missing, not expected or misshapen, or the config contradicts itself.
        ModelUnsupported: a layout, dtype or packing that is not built.
    """
    where = str(folder)
    config = parse_config(raw, str(folder / "config.json"))
    infos = collect_tensors(folder, raw, config, drafter)
    has_mtp, eights = any(name.startswith("mtp.") for name in infos), _find_eights(infos, where)
    tensors = _read_tensors({name: info for name, info in infos.items() if not TABLE_TENSOR.fullmatch(name)}, where)
    buffers = {name: tensors.pop(name) for name in list(tensors) if HASH_BUFFER.fullmatch(name)}
    scales = {name: tensors.pop(name) for name in list(tensors) if TABLE_SCALE.fullmatch(name)}
    if config.tie_word_embeddings:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_head.")}
    eights &= tensors.keys()
    kept = dtype or _own_dtype(tensors, eights)
    tensors = centre_norms(shape_tensors(tensors, eights, config, where), where)
    model = _build_model(config, has_mtp, tensors, where)
    model.load_weights([(name, _cast(name, tensors.pop(name), kept)) for name in list(tensors)])
    tables = build_tables(config, infos, scales, kept, where)
    counted = _count_parameters(model) + sum(table.rows * table.columns for table in tables)
    model.prepare(build_hashes(config, buffers, tables, where), tables, kept)
    return LoadedFlashNext(
        model=model,
        config=config,
        dtype=kept,
        has_mtp=has_mtp,
        parameters=counted,
        weights_bytes=count_bytes(model) + sum(table.nbytes for table in tables),
    )


def _find_eights(infos: Infos, where: str) -> set[str]:
    """Names of 8-bit floats, which MLX reads as bytes."""
    if odd := sorted(name for name, info in infos.items() if info.dtype == "F8_E5M2"):
        raise ModelUnsupported(f"{where} holds 8-bit floats of the kind E5M2 ({list_names(odd)}), which are not built.")
    return {name for name, info in infos.items() if info.dtype == "F8_E4M3" and name.endswith(".weight")} | {
        name.removesuffix("_scale_inv") for name in infos if name.endswith(".weight_scale_inv")
    }


def _read_tensors(infos: Infos, where: str) -> Tensors:
    """The named tensors, not yet evaluated: their bytes are read when the model is."""
    files: dict[Path, dict[str, mx.array]] = {}
    for file in {info.file for info in infos.values()}:
        try:
            loaded = mx.load(str(file))
        except (RuntimeError, ValueError) as problem:
            raise CheckpointInvalid(f"{where}: {file.name} cannot be loaded: {problem}.") from None
        assert isinstance(loaded, dict)
        files[file] = loaded
    return {name: files[infos[name].file][infos[name].name] for name in sorted(infos)}


def _build_model(config: FlashNextConfig, has_mtp: bool, tensors: Tensors, where: str) -> FlashNext:
    """The model with modules that are packed as the tensors are, which are all checked to have a place."""
    try:
        model = FlashNext(config, has_mtp=has_mtp)
    except (ValueError, RuntimeError, OverflowError) as problem:  # dimensions that no array can have
        raise CheckpointInvalid(f"{where}: its config describes no model that can be built: {problem}.") from None
    apart = split_heads(tensors)
    for path, module in model.named_modules():
        if path in apart and isinstance(module, Experts):
            module.split()
    _quantize_alike(model, tensors, where)
    _check_tensors(model, tensors, where)
    return model


def _quantize_alike(model: FlashNext, tensors: Tensors, where: str) -> None:
    """Turn the modules whose tensors are packed into quantized ones; bits and groups come from the shapes.

    The map in config.json is not needed: it holds paths of the program that wrote it, and defaults that do not
    apply where a width is not divisible.
    """

    def decide(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if f"{path}.scales" not in tensors or f"{path}.weight" not in tensors or not hasattr(module, "to_quantized"):
            return False
        return infer_quant_config(path, module, tensors)

    try:
        nn.quantize(model, class_predicate=decide)
    except (ValueError, KeyError, IndexError, ZeroDivisionError) as problem:
        reason = " ".join(str(problem).split()).rstrip(".")
        raise ModelUnsupported(f"{where} is quantized in a way that cannot be run: {reason}.") from None


def _check_tensors(model: FlashNext, tensors: Mapping[str, mx.array], where: str) -> None:
    expected = name_arrays(model)
    if missing := sorted(expected.keys() - tensors.keys()):
        raise CheckpointInvalid(f"{where} lacks tensors that its config calls for: {list_names(missing)}.")
    if unexpected := sorted(tensors.keys() - expected.keys()):
        raise CheckpointInvalid(f"{where} holds tensors that its config has no place for: {list_names(unexpected)}.")
    wrong = [
        f"{name} is {list(tensor.shape)} where {list(expected[name].shape)} is called for"
        for name, tensor in tensors.items()
        if tensor.shape != expected[name].shape
    ]
    if wrong:
        raise CheckpointInvalid(f"{where} has tensors of other shapes than its config's: {list_names(wrong)}.")
    for name, tensor in tensors.items():
        if mx.issubdtype(expected[name].dtype, mx.floating) != mx.issubdtype(tensor.dtype, mx.floating):
            kind = str(tensor.dtype).rpartition(".")[2]
            raise CheckpointInvalid(f"{where}: {name} is stored as {kind}, which is not what its packing calls for.")


def _own_dtype(tensors: Mapping[str, mx.array], eights: set[str]) -> mx.Dtype:
    """The dtype that the checkpoint's own arithmetic is meant for."""
    for name in DTYPE_SIGNS:
        if name not in eights and name in tensors and mx.issubdtype(tensors[name].dtype, mx.floating):
            return tensors[name].dtype
    return mx.bfloat16


def _cast(name: str, tensor: mx.array, dtype: mx.Dtype) -> mx.array:
    if not mx.issubdtype(tensor.dtype, mx.floating):
        return tensor
    return tensor.astype(mx.float32 if FLOAT32_ALWAYS.fullmatch(name) else dtype)


def _count_parameters(model: FlashNext) -> int:
    """Numbers in the model, those that are packed counted as what they stand for."""
    total = 0
    for _, module in model.named_modules():
        own = {key: value for key, value in module.items() if isinstance(value, mx.array)}
        bits = getattr(module, "bits", None)
        if "scales" in own and isinstance(bits, int):
            total += own["weight"].size * 32 // bits
        else:
            total += sum(array.size for array in own.values())
    return total
