"""Every way that rows can attend gives the same result: by masks, by NumPy, by gathered blocks, a few at a time."""

from __future__ import annotations

from functools import partial
from itertools import product

import mlx.core as mx
import numpy as np
import pytest

from server.models.flash_next import attend_host
from server.models.flash_next.attend import BlockAttention, Cache, Parts
from server.models.flash_next.config import FlashNextConfig, parse_config
from server.models.folder import EMBEDDED_FOLDER, read_config

WIDTH, CAPACITY = 32, 512


@pytest.fixture
def geometry() -> BlockAttention:
    """Nano's heads with a budget of 32 tokens."""
    config: FlashNextConfig = parse_config(read_config(EMBEDDED_FOLDER), "nano")
    attention = BlockAttention(config)
    attention.top = 8
    return attention


def draw(rows: int, seed: int) -> Parts:
    rng = np.random.default_rng(seed)
    shapes = ((rows, 6, WIDTH), (rows, 2, WIDTH), (rows, 2, WIDTH), (rows, WIDTH))
    qk, values, index_queries, index_keys = (mx.array(rng.normal(size=s).astype(np.float32)) for s in shapes)
    return qk, values, index_queries, index_keys


def build_cache() -> Cache:
    return [mx.zeros((1, h, n, WIDTH)) for h, n in ((2, CAPACITY), (2, CAPACITY), (1, CAPACITY), (1, CAPACITY // 4))]


def check_close(ours: mx.array, theirs: mx.array) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-5


@pytest.mark.parametrize("begun", [0, 5, 31, 33, 200])
@pytest.mark.parametrize(
    ("way", "rows"),
    [
        *product(("host", "host, small tiles", "host, gathered"), (1, 3, 8, 30, 70)),
        *product(("few",), (1, 3, 8)),
    ],
)
def test_rows_attend_alike_by_every_way(
    geometry: BlockAttention, monkeypatch: pytest.MonkeyPatch, begun: int, rows: int, way: str
) -> None:
    norm = mx.ones((WIDTH,))
    monkeypatch.setattr(BlockAttention, "uses_host", lambda *_: False)
    masked, other = build_cache(), build_cache()
    for cache in (masked, other):
        if begun:
            geometry.run_rows(draw(begun, 1), cache, 0, 0, norm)
    parts = draw(rows, 2)
    expected, masked = geometry.run_rows(parts, masked, begun, begun // 4, norm)
    if way == "few":
        selects = geometry.selects(begun + rows)
        rotation = geometry.rotate_touched(begun, rows)
        got, other = geometry.run_few(parts, other, mx.array(begun), rotation, norm, selects=selects)
    else:
        monkeypatch.setattr(BlockAttention, "uses_host", lambda *_: True)
        monkeypatch.setattr(attend_host, "GATHER_FROM", 0 if "gathered" in way else 1000)
        if "small" in way:
            monkeypatch.setattr(attend_host, "TILE_SCORES", 3 * (begun + rows))
        got, other = geometry.run_rows(parts, other, begun, begun // 4, norm)
    check_close(got, expected)
    for ours, theirs in zip(other[:3], masked[:3], strict=True):
        check_close(ours, theirs)
    if geometry.selects(begun + rows):
        complete = (begun + rows) // 4
        check_close(other[3][:, :, :complete], masked[3][:, :, :complete])


def test_few_rows_can_be_compiled(geometry: BlockAttention) -> None:
    norm, cache = mx.ones((WIDTH,)), build_cache()
    geometry.run_rows(draw(50, 1), cache, 0, 0, norm)
    parts = draw(3, 2)
    given = (mx.array(50), geometry.rotate_touched(50, 3), norm)
    plain, _ = geometry.run_few(parts, list(cache), *given, selects=True)
    traced, _ = mx.compile(partial(geometry.run_few, selects=True))(parts, list(cache), *given)
    check_close(traced, plain)


def test_ties_go_to_the_newer_block_by_every_way(geometry: BlockAttention, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = mx.ones((WIDTH,))
    qk, values, index_queries, index_keys = draw(120, 3)
    parts = (qk, values, mx.zeros_like(index_queries), index_keys)  # every block scores zero
    results: list[mx.array] = []
    for host, gather in ((False, 0), (True, 0), (True, 1000)):
        monkeypatch.setattr(BlockAttention, "uses_host", lambda *_, host=host: host)
        monkeypatch.setattr(attend_host, "GATHER_FROM", gather)
        results.append(geometry.run_rows(parts, build_cache(), 0, 0, norm)[0])
    check_close(results[1], results[0])
    check_close(results[2], results[0])
