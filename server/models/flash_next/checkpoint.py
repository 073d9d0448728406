"""From a checkpoint folder to a `FlashNext` ready to run: names, shapes, packings and dtypes checked on the way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
from mlx_lm.utils import infer_quant_config

from server.errors import CheckpointInvalid, ModelUnsupported
from server.models.flash_next.config import FlashNextConfig, parse_config
from server.models.flash_next.layouts import FLOAT32_ALWAYS, Layout, find_layout, rename, shape_tensors
from server.models.flash_next.model import FlashNext
from server.models.flash_next.ngram_parts import HASH_BUFFER, TABLE_TENSOR, build_hashes, build_tables
from server.models.tensor_files import TensorInfo, scan_checkpoint
from server.models.weights import count_bytes, name_arrays

SHOWN_NAMES = 3
"""Tensor names that an error lists; the rest are counted."""


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


class Stored(msgspec.Struct, frozen=True):
    """The tensors in the files, by canonical name."""

    layout: Layout
    infos: dict[str, TensorInfo]
    origins: dict[str, str]
    """The name in the file."""


def load_flash_next(folder: Path, raw: dict[str, Any], dtype: mx.Dtype | None) -> LoadedFlashNext:
    """Load the folder's checkpoint; `raw` is its parsed config.json, dtype None keeps the checkpoint's own.

    Raises:
        CheckpointInvalid: a tensor is missing, not expected or misshapen, or the config contradicts itself.
        ModelUnsupported: a layout, dtype or packing that is not built.
    """
    where = str(folder)
    config = parse_config(raw, str(folder / "config.json"))
    stored = _name_canonically(scan_checkpoint(folder), where)
    apart = {name for name in stored.infos if TABLE_TENSOR.fullmatch(name)}
    has_mtp = any(name.startswith("mtp.") for name in stored.infos)
    tensors = shape_tensors(stored.layout, _read_tensors(stored, stored.infos.keys() - apart, where), where)
    buffers = {name: tensors.pop(name) for name in list(tensors) if HASH_BUFFER.fullmatch(name)}
    model = FlashNext(config, has_mtp=has_mtp)
    _quantize_alike(model, tensors, where)
    _check_tensors(model, tensors, where)
    kept = dtype or _own_dtype(tensors)
    model.load_weights([(name, _cast(name, tensor, kept)) for name, tensor in tensors.items()])
    tables = build_tables(config, stored.infos, kept, where)
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


def _name_canonically(found: Mapping[str, TensorInfo], where: str) -> Stored:
    layout = find_layout(found, where)
    infos: dict[str, TensorInfo] = {}
    origins: dict[str, str] = {}
    for origin, info in found.items():
        if (name := rename(layout, origin)) is None:
            continue
        if info.dtype.startswith("F8"):
            raise ModelUnsupported(f"{where} holds 8-bit floats ({origin}), which cannot be loaded yet.")
        infos[name], origins[name] = info, origin
    return Stored(layout=layout, infos=infos, origins=origins)


def _read_tensors(stored: Stored, names: Collection[str], where: str) -> dict[str, mx.array]:
    """The named tensors, not yet evaluated: their bytes are read when the model is."""
    files: dict[Path, dict[str, mx.array]] = {}
    for file in {stored.infos[name].file for name in names}:
        try:
            loaded = mx.load(str(file))
        except (RuntimeError, ValueError) as problem:
            raise CheckpointInvalid(f"{where}: {file.name} cannot be loaded: {problem}.") from None
        assert isinstance(loaded, dict)
        files[file] = loaded
    return {name: files[stored.infos[name].file][stored.origins[name]] for name in sorted(names)}


def _quantize_alike(model: FlashNext, tensors: dict[str, mx.array], where: str) -> None:
    """Turn the modules whose tensors are packed into quantized ones; bits and groups come from the shapes.

    The map in config.json is not needed: it holds paths of the program that wrote it, and defaults that do not
    apply where a width is not divisible.
    """

    def decide(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if f"{path}.scales" not in tensors or not hasattr(module, "to_quantized"):
            return False
        return infer_quant_config(path, module, tensors)

    try:
        nn.quantize(model, class_predicate=decide)
    except (ValueError, KeyError, ZeroDivisionError) as problem:
        raise ModelUnsupported(f"{where} is quantized in a way that cannot be run: {problem}.") from None


def _check_tensors(model: FlashNext, tensors: Mapping[str, mx.array], where: str) -> None:
    expected = name_arrays(model)
    if missing := sorted(expected.keys() - tensors.keys()):
        raise CheckpointInvalid(f"{where} lacks tensors that its config calls for: {_list_names(missing)}.")
    if unexpected := sorted(tensors.keys() - expected.keys()):
        raise CheckpointInvalid(f"{where} holds tensors that its config has no place for: {_list_names(unexpected)}.")
    for name, tensor in tensors.items():
        shape, wanted = list(tensor.shape), list(expected[name].shape)
        if shape != wanted:
            raise CheckpointInvalid(f"{where}: {name} has shape {shape}, but the config calls for {wanted}.")


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _own_dtype(tensors: Mapping[str, mx.array]) -> mx.Dtype:
    """The dtype that the checkpoint's own arithmetic is meant for."""
    return tensors.get("lm_head.scales", tensors["lm_head.weight"]).dtype


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
