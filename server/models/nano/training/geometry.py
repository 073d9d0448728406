"""What nano is made of: the `qwen4_exp` text configuration that all training scripts share."""

from __future__ import annotations

from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

VOCABULARY = 3072
WINDOW = 512
"""Tokens of a training sequence; inside the indexer's budget of 1024, so that attention is dense while training."""

TEXT_CONFIG = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 12,
    "layer_types": (["linear_attention"] * 3 + ["indexed_attention"]) * 3,
    "max_position_embeddings": 65_536,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "type": "default",
        "rope_theta": 100_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "output_gate_type": "sigmoid",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "norm_topk_prob": True,
    "hc_count": 2,
    "hc_lowrank": 64,
    "ple_layer_ids": [2],
    "ple_embed_dim": 128,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 4096,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 4,
    "seed": 1234,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 1024,
    "indexer_compress_ratio": 4,
}


def build_config() -> Qwen4ExpTextConfig:
    """The configuration as transformers wants it."""
    config = Qwen4ExpTextConfig(**TEXT_CONFIG)
    config._attn_implementation = "sdpa"
    return config
