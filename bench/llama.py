"""A random llama of 4 layers x 256 with nano's tokenizer: the same small work for any server on mlx-lm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 3072,
    "max_position_embeddings": 16384,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def write_llama(folder: Path, tokenizer_folder: Path) -> Path:
    """Write the checkpoint (seeded, float32, about 18 MB) into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    mx.random.seed(7)
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"}
    )
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    for name in TOKENIZER_FILES:
        shutil.copy(tokenizer_folder / name, folder / name)
    return folder
