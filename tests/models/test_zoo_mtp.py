"""Checkpoints of other architectures that carry a drafting head: served without it, and otherwise unharmed."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from server.models.loader import UNUSED_HEAD, load_model

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


@pytest.mark.parametrize("prefix", ["mtp.", "language_model.mtp."])
@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe"])
def test_a_head_that_cannot_be_served_changes_nothing(
    tmp_path: Path, feed: Callable[..., Any], kind: str, prefix: str
) -> None:
    config = {"model_type": kind, "text_config": TEXT | (EXPERTS if kind.endswith("moe") else {})}
    module = import_module(f"mlx_lm.models.{kind}")
    mx.random.seed(3)
    model = module.Model(module.ModelArgs.from_dict(config))
    tensors: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    head = {f"{prefix}fc.weight": mx.ones((64, 128)), f"{prefix}norm.weight": mx.ones((64,))}
    seen: list[Any] = []
    for name, stored in {"plain": tensors, "with-head": tensors | head}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        mx.save_safetensors(str(folder / "model.safetensors"), stored)
        served = load_model(str(folder), "auto")
        assert not served.facts.has_mtp
        assert (served.facts.no_mtp_because == UNUSED_HEAD) == (name == "with-head")
        assert served.mtp is None
        seen.append(feed(served, served.build_state(), (5, 6, 7, 8, 9)))
    assert np.array_equal(seen[0], seen[1])
