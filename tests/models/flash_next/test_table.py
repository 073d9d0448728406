"""Rows of the n-gram table, read from files that may be cut under a server that uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from server.errors import SequenceFailed
from server.models.cache import Segment, ServedModel
from server.models.flash_next import table as table_module
from server.models.flash_next.table import FEW_LOOKUPS, NgramTable, TableShard
from server.models.loader import load_model
from server.models.tensor_files import TensorInfo, read_header

ROWS, COLUMNS = (50, 50, 7), 6

Copy = Callable[[str], Path]


@pytest.fixture
def shards(tmp_path: Path) -> list[TableShard]:
    """A table in three shards of two files, with other bytes between them; number n in row r is 100 r + n."""
    numbers = np.arange(sum(ROWS))[:, None] * 100.0 + np.arange(COLUMNS)
    parts = np.split(numbers.astype(np.float32), np.cumsum(ROWS)[:-1])
    files = ({"c": parts[0], "gap": np.zeros(9, np.float32), "a": parts[2]}, {"b": parts[1]})
    found: dict[str, TensorInfo] = {}
    for index, tensors in enumerate(files):
        file = tmp_path / f"model-{index}.safetensors"
        mx.save_safetensors(str(file), {name: mx.array(tensor) for name, tensor in tensors.items()})
        found |= read_header(file)
    return [TableShard(found[name]) for name in ("c", "b", "a")]


def expect(rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return (rows[..., None] * 100.0 + np.arange(COLUMNS)).reshape(len(rows), -1)


@pytest.mark.parametrize("near", [0, 24, 4096])
@pytest.mark.parametrize(("tokens", "heads"), [(1, 1), (1, 4), (8, 2), (300, 4)])
def test_rows_are_read_in_any_order_and_as_often_as_wanted(
    shards: list[TableShard], monkeypatch: pytest.MonkeyPatch, tokens: int, heads: int, near: int
) -> None:
    monkeypatch.setattr(table_module, "NEAR_BYTES", near)
    table = NgramTable(shards, COLUMNS, mx.float32)
    for seed in range(5):
        rows = np.random.default_rng(seed).integers(0, table.rows, (tokens, heads))
        assert np.array_equal(np.array(table.gather(rows)), expect(rows))
    edges = np.array([[106, 100, 99, 50, 49, 0]])
    assert np.array_equal(np.array(table.gather(edges)), expect(edges))


def test_neighbours_are_read_in_one_go(shards: list[TableShard], monkeypatch: pytest.MonkeyPatch) -> None:
    table, read, calls = NgramTable(shards, COLUMNS, mx.float32), os.pread, list[int]()

    def count(descriptor: int, length: int, offset: int) -> bytes:
        calls.append(length)
        return read(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", count)
    table.gather(np.arange(70)[:, None])
    assert calls == [50 * COLUMNS * 4, 20 * COLUMNS * 4]


def test_a_few_rows_are_the_same_read_one_by_one(shards: list[TableShard]) -> None:
    """In any order, also when one comes twice, and on both sides of a shard's end."""
    table = NgramTable(shards, COLUMNS, mx.float32)
    wanted = np.array([[106, 3, 49], [50, 3, 0]])
    assert wanted.size <= FEW_LOOKUPS
    assert np.array_equal(np.array(table.gather(wanted)), expect(wanted))
    many = np.tile(wanted, (20, 1))
    assert many.size > FEW_LOOKUPS
    assert np.array_equal(np.array(table.gather(many)), expect(many))


def test_a_table_that_is_dropped_closes_its_files(shards: list[TableShard]) -> None:
    before = len(os.listdir("/dev/fd"))
    table = NgramTable(shards, COLUMNS, mx.float32)
    assert len(os.listdir("/dev/fd")) == before + 2
    del table
    assert len(os.listdir("/dev/fd")) == before


def test_rows_that_were_cut_off_fail_and_the_others_do_not(shards: list[TableShard]) -> None:
    table, file = NgramTable(shards, COLUMNS, mx.float32), shards[1].weight.file
    os.truncate(file, file.stat().st_size - 10)
    whole = np.array([[0, 98, 106]])
    assert np.array_equal(np.array(table.gather(whole)), expect(whole))
    with pytest.raises(SequenceFailed, match=f"{file.name} has been cut short or changed"):
        table.gather(np.array([[0, 99, 106]]))


def test_a_file_that_is_cut_while_it_is_served_fails_only_who_reads_there(
    copy_checkpoint: Copy, served: Callable[[str], ServedModel], feed: Any
) -> None:
    file = copy_checkpoint("tiny") / "model.safetensors"
    model, whole = load_model(str(file.parent), "auto"), served("tiny")
    harmed, unharmed, plain = model.build_state(), model.build_state(), whole.build_state()
    for runner, state in ((model, harmed), (model, unharmed), (whole, plain)):
        feed(runner, state, (5, 6, 7))
    points = [(state, state.checkpoint()) for state in (harmed, unharmed)]
    last = read_header(file)["model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_3.weight"]
    content = file.read_bytes()
    os.truncate(file, last.end - 7 * 64)  # the last seven rows, of which the token 362 reads one here and 128 none
    with pytest.raises(SequenceFailed, match=r"model\.safetensors has been cut short"):
        model.forward([Segment(unharmed, (128,)), Segment(harmed, (362,))])
    for state, point in points:
        state.rollback(point)
    with pytest.raises(SequenceFailed):
        model.forward([Segment(harmed, (362,))])
    assert np.array_equal(feed(model, unharmed, (128,)), feed(whole, plain, (128,)))
    with file.open("r+b") as stream:  # in place, so that it is the same file
        stream.write(content)
    harmed.rollback(points[0][1])
    feed(model, harmed, (128,))
    assert np.array_equal(feed(model, harmed, (362,)), feed(model, unharmed, (362,)))
