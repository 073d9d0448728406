"""What a stream takes, by the shapes of the real model and of one that is run."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from server.models.flash_next.config import parse_config
from server.models.flash_next.layer import DecoderLayer
from server.models.flash_next.state import FlashNextState
from server.models.loader import load_model

KIB, MIB = 2**10, 2**20
REAL: dict[str, Any] = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 64,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "hc_count": 4,
    "hc_lowrank": 8,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [2],
    "ple_embed_dim": 2,
    "eos_token_id": 0,
}
"""The real model where a state's shapes come from; small where they do not. Nothing of it is evaluated."""


def test_bytes_of_the_real_shapes_are_those_of_the_model_s_description() -> None:
    """12 sparse layers of 2,368 bytes a token in bfloat16, and about 110 MiB whatever the length."""
    config = parse_config({"model_type": "qwen4_exp", "text_config": REAL}, "config.json")
    layers = [DecoderLayer(config, sparse=sparse, has_ngrams=False) for sparse in config.sparse_layers]
    ngrams = DecoderLayer(config, sparse=False, has_ngrams=True)
    state = FlashNextState(
        [layer.build_cache(mx.bfloat16) for layer in layers],
        [ngrams.ple.build_cache(mx.bfloat16)],
        sparse=config.sparse_layers,
        recent=(0, 0),
        ratio=config.indexer_compress_ratio,
    )
    cost = state.cost
    assert sum(config.sparse_layers) == 12
    assert abs(cost.token_bytes / (12 * 2368) - 1) < 0.05
    assert abs(cost.fixed_bytes / (36 * (61440 + 3145728) + 184320) - 1) < 0.05


def test_a_stream_takes_what_the_facts_say() -> None:
    """Measured on the arrays of a state that was run, up to the slack of its buffers."""
    model = load_model("nano", "auto")
    facts, state = model.facts, model.build_state()
    state.reserve(4000)  # type: ignore[attr-defined]
    assert model.mtp is not None
    head = model.mtp.build_state()
    head.reserve(4000)  # type: ignore[attr-defined]
    held = state.nbytes + head.nbytes
    exact = facts.stream_bytes + 4000 * facts.token_bytes
    assert exact <= held <= 1.15 * exact
    assert held <= facts.plan_memory(1.0).stream.at(4000)
