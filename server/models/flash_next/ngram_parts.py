"""The checkpoint's n-gram hash buffers and table shards, checked and brought into the form that lookups use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import mlx.core as mx

from server.errors import CheckpointInvalid, ModelUnsupported
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.ngrams import NgramHash, derive_multipliers, derive_offsets, derive_primes
from server.models.flash_next.table import EIGHTS, HOST_DTYPES, NgramTable, TableShard, infer_packing
from server.models.tensor_files import TensorInfo

TABLE_TENSOR = re.compile(r"layers\.(\d+)\.ple\.ple_embedding\.ngram_embedding\.(\d+)\.(weight|scales|biases)")
"""A range of rows of one layer's table, by canonical name."""
TABLE_SCALE = re.compile(r"layers\.(\d+)\.ple\.ple_embedding\.ngram_embedding\.weight_scale")
"""What all rows of a table of 8-bit floats are multiplied with."""
BUFFER_KINDS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
HASH_BUFFER = re.compile(rf"layers\.(\d+)\.ple\.ple_embedding\.({'|'.join(BUFFER_KINDS)})")
"""Whole numbers that the hash uses; 64 bits wide, and so outside of every cast."""


def build_hashes(
    config: FlashNextConfig, buffers: Mapping[str, mx.array], tables: Sequence[NgramTable], where: str
) -> list[NgramHash]:
    """The hash of each PLE layer, in ascending order. Buffers in the checkpoint must equal what the config implies.

    Raises:
        CheckpointInvalid: a stored buffer differs (as after a cast of the whole checkpoint), or the table is too small.
    """
    hashes: list[NgramHash] = []
    for place, (index, table) in enumerate(zip(config.ple_indices, tables, strict=True)):
        multipliers, primes = derive_multipliers(config, place), derive_primes(config, place)
        offsets = derive_offsets(primes)
        implied = (multipliers, primes, offsets)
        for kind, numbers in zip(BUFFER_KINDS, implied, strict=True):
            name = f"layers.{index}.ple.ple_embedding.{kind}"
            if name in buffers and buffers[name].tolist() != numbers.tolist():
                raise CheckpointInvalid(f"{where}: {name} is not what the config implies; the n-gram hash is damaged.")
        if table.rows < int(primes.sum()):
            raise CheckpointInvalid(
                f"{where}: the n-gram table of layer {index} has {table.rows:,} rows, its hash needs {primes.sum():,}."
            )
        hashes.append(NgramHash(multipliers, primes, offsets, config.hash_eos))
    return hashes


def build_tables(
    config: FlashNextConfig,
    infos: Mapping[str, TensorInfo],
    scales: Mapping[str, mx.array],
    dtype: mx.Dtype,
    where: str,
) -> list[NgramTable]:
    """The table of each PLE layer, in ascending order.

    Raises:
        CheckpointInvalid: shards are missing or their width is wrong.
        ModelUnsupported: a dtype or packing that rows cannot be read in.
    """
    found = _group_shards(infos)
    if stray := sorted(found.keys() - set(config.ple_indices)):
        raise CheckpointInvalid(f"{where} has an n-gram table for layer {stray[0]}, which ple_layer_ids does not name.")
    columns = config.ple_embed_dim // config.ngram_heads
    by_layer = {int(match[1]): scale for name, scale in scales.items() if (match := TABLE_SCALE.fullmatch(name))}
    tables: list[NgramTable] = []
    for index in config.ple_indices:
        label = f"{where}: the n-gram table of layer {index}"
        shards = _order_shards(found.get(index, {}), label)
        for shard in shards:
            _check_shard(shard, shards[0], label)
        scale = _read_scale(shards[0], by_layer.get(index), label)
        try:
            packing = infer_packing(shards[0], columns)
        except ValueError as problem:
            raise CheckpointInvalid(f"{label} {problem}.") from None
        tables.append(NgramTable(shards, columns, dtype, packing, scale))
    return tables


def _read_scale(shard: TableShard, stored: mx.array | None, label: str) -> float | None:
    """The factor of a table of 8-bit floats; None for any other."""
    if shard.weight.dtype not in EIGHTS:
        return None
    if stored is None or stored.size != 1:
        raise CheckpointInvalid(f"{label} holds 8-bit floats without the one weight_scale that they need.")
    scale = stored.astype(mx.float32).item()
    assert isinstance(scale, float)
    return scale


def _group_shards(infos: Mapping[str, TensorInfo]) -> dict[int, dict[int, dict[str, TensorInfo]]]:
    """Layer, then number of the shard, then its parts."""
    found: dict[int, dict[int, dict[str, TensorInfo]]] = {}
    for name, info in infos.items():
        if match := TABLE_TENSOR.fullmatch(name):
            found.setdefault(int(match[1]), {}).setdefault(int(match[2]), {})[match[3]] = info
    return found


def _order_shards(parts: Mapping[int, dict[str, TensorInfo]], label: str) -> list[TableShard]:
    if not parts:
        raise CheckpointInvalid(f"{label} is missing.")
    for number in range(max(parts) + 1):
        if "weight" not in parts.get(number, {}):
            raise CheckpointInvalid(f"{label} lacks its shard {number}.")
    return [TableShard(**parts[number]) for number in sorted(parts)]


def _check_shard(shard: TableShard, first: TableShard, label: str) -> None:
    """Each shard must be packed as the first is, in a dtype that rows can be read in."""
    if any(part.dtype not in HOST_DTYPES for part in shard.parts):
        raise ModelUnsupported(f"{label} is stored as {shard.weight.dtype}, which cannot be read.")
    if len({part.shape[:1] for part in shard.parts}) > 1 or any(len(part.shape) != 2 for part in shard.parts):
        raise CheckpointInvalid(f"{label} has a shard whose parts differ in their rows.")
    if _kinds(shard) != _kinds(first):
        raise CheckpointInvalid(f"{label} has shards of different widths or dtypes.")


def _kinds(shard: TableShard) -> list[tuple[object, ...] | None]:
    parts = (shard.weight, shard.scales, shard.biases)
    return [None if part is None else (part.dtype, part.shape[1:]) for part in parts]
