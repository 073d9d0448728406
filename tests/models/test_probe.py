from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.models.flash_next.config import parse_config
from server.models.folder import read_config, resolve_model_folder
from server.models.loader import load_model
from server.models.probe import measure_bandwidth


@pytest.fixture(scope="module")
def nano() -> Any:
    return load_model("nano", "float32")


def test_a_loaded_model_knows_what_its_steps_took_and_its_device_reads(nano: Any) -> None:
    facts = nano.facts
    timed = facts.timed
    assert min(timed.one_s, timed.pair_s, timed.wide_s, timed.chunk_s) > 0
    assert timed.far_s > 0
    assert timed.far_tokens == 1028
    assert facts.bandwidth_bps == measure_bandwidth() > 1e8


def test_reads_are_the_shapes_of_the_checkpoint(nano: Any) -> None:
    folder: Path = resolve_model_folder("nano")
    config = parse_config(read_config(folder), "config.json")
    reads = nano.facts.reads
    # In float32: gate, up and down projection of an expert are 3 * H * I numbers.
    assert reads.expert_bytes == 4 * 3 * config.hidden_size * config.moe_intermediate_size
    assert (reads.experts, reads.experts_per_token, reads.expert_layers) == (4, 2, 12)
    # Keys and values of 2 heads of 32 in 3 of 12 layers; an index key of 32 numbers for each block of 4 tokens.
    assert reads.context_bytes == 4 * 2 * 2 * 32 * 3
    assert reads.index_bytes == 4 * 32 * 3 // 4
    assert reads.attended_tokens == 1024
    # Nine linear layers: states of 4 heads of 32 by 32 in float32, windows of 3 rows; and the PLE layer's window.
    assert reads.state_bytes >= 9 * 4 * 4 * 32 * 32
    # All weights but the experts, the embedding, the n-gram table and the head that drafts.
    rest = nano.facts.weights_bytes - 12 * 4 * reads.expert_bytes
    assert 0.5 * rest < reads.dense_bytes < rest
    assert 0 < reads.head_bytes < reads.dense_bytes
