"""A random checkpoint whose attention has the real model's heads, widths, budget and ratio, small everywhere else.

What grows with the context (keys, values, indexer) is as large per layer as in the real model. What does not grow is
far smaller: a hidden size of 512 instead of 2560, few and small experts. So growth shows here that would be hidden
there: this model's share of attention in a step is an upper bound for the real one's.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import mlx.core as mx

from server.models.flash_next.config import parse_config
from server.models.flash_next.model import FlashNext
from server.models.weights import name_arrays

TEXT_CONFIG = {
    "model_type": "qwen4_exp_text",
    "dtype": "float32",
    "vocab_size": 3072,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "max_position_embeddings": 262144,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "output_gate_type": "sigmoid",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "hc_count": 4,
    "hc_lowrank": 64,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [],
    "eos_token_id": 0,
}
"""Real: heads, head widths, rotary share, indexer and the mix of layers. Left out: the n-gram lookup, which takes the
same at any context."""


def write_real_ratios(folder: Path) -> Path:
    """Write the checkpoint (seeded, float32, about 150 MB) into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "qwen4_exp", "text_config": TEXT_CONFIG}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    shapes = {name: array.shape for name, array in name_arrays(FlashNext(parse_config(config, "config.json"))).items()}
    keys = mx.random.split(mx.random.key(7), len(shapes))
    tensors = {
        f"language_model.{name}" if name.startswith("lm_head.") else f"language_model.model.{name}": _draw(shape, key)
        for (name, shape), key in zip(shapes.items(), keys, strict=True)
    }
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    return folder


def _draw(shape: tuple[int, ...], key: mx.array) -> mx.array:
    """Noise that keeps the size of what passes through it; vectors are small."""
    scale = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.02
    return scale * mx.random.normal(shape, key=key)
