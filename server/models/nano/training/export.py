"""Write the trained weights as a checkpoint folder in the official layout, with tokenizer and chat template.

    python export.py FOLDER TARGET

Reads nano.pt and tokenizer.json. A vision tower of one untrained block goes in as well: programs that load the whole
multimodal architecture want one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from geometry import TEXT_CONFIG, build_config
from network import reference
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpConfig

TEMPLATE = Path(__file__).parents[1] / "chat_template.jinja"
VISION_STUB = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": TEXT_CONFIG["hidden_size"],
    "num_position_embeddings": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "deepstack_visual_indexes": [],
}
IMAGE_TOKENS = {"image_token_id": 11, "video_token_id": 12, "vision_start_token_id": 9, "vision_end_token_id": 10}
STOP_TOKENS = [2, 0]
"""<|im_end|> and <|endoftext|>."""


def write_weights(source: Path, target: Path) -> None:
    """The whole architecture in BF16, and the draft head under `mtp.`."""
    saved = torch.load(source / "nano.pt")
    config = Qwen4ExpConfig(
        text_config=build_config().to_dict(), vision_config=VISION_STUB, tie_word_embeddings=False, **IMAGE_TOKENS
    )
    torch.manual_seed(1)
    model = reference.Qwen4ExpForConditionalGeneration(config)
    renamed = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in saved["trunk"].items()
    }
    result = model.load_state_dict(renamed, strict=False)
    assert not result.unexpected_keys, result.unexpected_keys
    assert all(".visual." in name for name in result.missing_keys), result.missing_keys
    model.to(torch.bfloat16).save_pretrained(target)
    tensors = load_file(target / "model.safetensors")
    tensors |= {f"mtp.{name}": tensor.to(torch.bfloat16).contiguous() for name, tensor in saved["head"].items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def complete_config(target: Path) -> None:
    """What save_pretrained leaves out, and the stop tokens."""
    file = target / "config.json"
    config = json.loads(file.read_text())
    config |= {"eos_token_id": STOP_TOKENS, "pad_token_id": 0}
    text = config["text_config"]
    text |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "full_attention_interval": 4}
    text["layer_types"] = [kind.replace("indexed", "full") for kind in text["layer_types"]]
    config["vision_config"]["deepstack_visual_indexes"] = []
    file.write_text(json.dumps(config, indent=1))
    generation = {"bos_token_id": 0, "eos_token_id": STOP_TOKENS, "pad_token_id": 0, "do_sample": False}
    (target / "generation_config.json").write_text(json.dumps(generation))


def write_tokenizer(source: Path, target: Path) -> None:
    """Tokenizer and chat template, the latter in both places where programs look for it."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=TEXT_CONFIG["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template = TEMPLATE.read_text()
    tokenizer.save_pretrained(target)
    file = target / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config |= {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(config, indent=1))


def main(source: Path, target: Path) -> None:
    """Write the folder."""
    target.mkdir(parents=True, exist_ok=True)
    write_weights(source, target)
    complete_config(target)
    write_tokenizer(source, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
