"""What the loader says to folders that are no model, and what it makes of those that are."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from server.errors import CheckpointInvalid, ModelError, ModelNotFound, ModelUnsupported
from server.models.cache import ServedModel
from server.models.flash_next.checkpoint import load_flash_next
from server.models.folder import read_config
from server.models.loader import choose_dtype, load_model
from server.models.weights import name_arrays

Copy = Callable[[str], Path]


def check_refused(folder: Path, kind: type[ModelError], *words: str, dtype: str = "auto") -> None:
    """One plain sentence of this kind that says these words."""
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), dtype)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    assert message.endswith((".", "can.")), message
    assert len(message) < 600, message
    assert "Traceback" not in message
    for word in words:
        assert word in message


def edit_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "config.json"
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))


def edit_tensors(folder: Path, change: Callable[[dict[str, mx.array]], None]) -> None:
    file = str(folder / "model.safetensors")
    tensors = mx.load(file)
    assert isinstance(tensors, dict)
    mx.eval(tensors)
    change(tensors)
    mx.save_safetensors(file, tensors)


LAYER = "model.language_model.layers.0"
PLE = "model.language_model.layers.1.ple.ple_embedding"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\x00", b"[]", b"null", b"{}", b'{"model_type": 3}', b"[" * 9000]
)
def test_a_garbled_config_is_invalid(copy_checkpoint: Copy, content: bytes) -> None:
    folder = copy_checkpoint("tiny2")
    (folder / "config.json").write_bytes(content)
    check_refused(folder, CheckpointInvalid, "config.json")


@pytest.mark.parametrize("kind", ["no_such_model", "../cache", "cache", "", "a.b", "os"])
def test_an_unknown_architecture_is_unsupported(copy_checkpoint: Copy, kind: str) -> None:
    folder = copy_checkpoint("tiny2")
    edit_config(folder, lambda raw: raw.update(model_type=kind))
    check_refused(folder, ModelUnsupported, repr(kind))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_hidden_layers": 3}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 3 + ["warp_attention"]}, "warp_attention"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"ple_layer_ids": [9]}, "ple_layer_ids"),
        ({"ple_embed_dim": 97}, "ple_embed_dim"),
        ({"eos_token_id": 512}, "eos_token_id"),
        ({"eos_token_id": []}, "eos_token_id"),
        ({"output_gate_type": "tanh"}, "output_gate_type"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"hidden_size": 10**12}, "hidden_size"),
        ({"ngram_vocab_size_base": 2**60}, "ngram_vocab_size_base"),
        ({"heads_per_ngram": 10**6}, "heads_per_ngram"),
    ],
)
def test_a_contradiction_in_the_config_is_named(copy_checkpoint: Copy, changes: dict[str, Any], word: str) -> None:
    folder = copy_checkpoint("tiny2")
    edit_config(folder, lambda raw: raw["text_config"].update(changes))
    check_refused(folder, CheckpointInvalid, "config.json", word)


def test_a_missing_field_is_named(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")
    edit_config(folder, lambda raw: raw["text_config"].pop("hc_count"))
    check_refused(folder, CheckpointInvalid, "hc_count")


def test_a_rope_scaling_that_is_not_built_is_unsupported(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")
    edit_config(folder, lambda raw: raw["text_config"]["rope_parameters"].update(rope_type="yarn"))
    check_refused(folder, ModelUnsupported, "yarn")


def test_a_config_of_another_width_names_a_tensor_and_both_shapes(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")
    edit_config(folder, lambda raw: raw["text_config"].update(moe_intermediate_size=48))
    check_refused(folder, CheckpointInvalid, "experts", "[8, 64, 96]", "[8, 64, 48]")


def test_missing_tensors_are_named_first_and_counted(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")

    def drop(tensors: dict[str, mx.array]) -> None:
        for name in [name for name in tensors if name.startswith(f"{LAYER}.linear_attn.")]:
            del tensors[name]

    edit_tensors(folder, drop)
    check_refused(folder, CheckpointInvalid, "lacks", "layers.0.linear_attn.A_log", "and 6 more")


def test_tensors_that_have_no_place_are_named(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")
    edit_tensors(folder, lambda tensors: tensors.update({f"{LAYER}.input_layernorm.weight": mx.ones((64,))}))
    check_refused(folder, CheckpointInvalid, "no place", "layers.0.input_layernorm.weight")


def test_a_missing_part_of_the_ngram_table_is_named(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny")

    def drop(tensors: dict[str, mx.array]) -> None:
        del tensors[f"{PLE}.ngram_embedding.shard_2.weight"]

    edit_tensors(folder, drop)
    check_refused(folder, CheckpointInvalid, "n-gram table of layer 1", "shard 2")


def test_hash_buffers_that_a_cast_destroyed_are_noticed(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny")

    def cast(tensors: dict[str, mx.array]) -> None:
        tensors[f"{PLE}.layer_multipliers"] = tensors[f"{PLE}.layer_multipliers"].astype(mx.bfloat16)

    edit_tensors(folder, cast)
    check_refused(folder, CheckpointInvalid, "layer_multipliers", "hash")


def test_hash_buffers_may_be_left_out(copy_checkpoint: Copy, served: Callable[[str], ServedModel], feed: Any) -> None:
    folder = copy_checkpoint("tiny")

    def drop(tensors: dict[str, mx.array]) -> None:
        for name in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"):
            del tensors[f"{PLE}.{name}"]

    edit_tensors(folder, drop)
    model, whole = load_model(str(folder), "auto"), served("tiny")
    assert np.array_equal(feed(model, model.build_state(), (5, 6, 7)), feed(whole, whole.build_state(), (5, 6, 7)))


def test_names_of_no_known_layout_are_unsupported(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")

    def rename(tensors: dict[str, mx.array]) -> None:
        for name in list(tensors):
            tensors[f"blk.{name}"] = tensors.pop(name)

    edit_tensors(folder, rename)
    check_refused(folder, ModelUnsupported, "official", "mlx-vlm")


def test_eight_bit_floats_are_unsupported_by_name(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")
    file = folder / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    entry = header["lm_head.weight"]
    entry["dtype"], entry["shape"] = "F8_E4M3", [entry["shape"][0], entry["shape"][1] * 2]
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    check_refused(folder, ModelUnsupported, "8-bit floats", "lm_head.weight")


@pytest.mark.parametrize("kept", [0, 5, 8, 100, 30_000, -1])
def test_a_truncated_file_is_invalid(copy_checkpoint: Copy, kept: int) -> None:
    folder = copy_checkpoint("tiny2")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    check_refused(folder, CheckpointInvalid, "model.safetensors")


def test_a_folder_without_weights_is_not_found(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")
    (folder / "model.safetensors").unlink()
    check_refused(folder, ModelNotFound, "safetensors")


def test_a_file_that_the_index_names_must_be_there(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_refused(folder, CheckpointInvalid, "model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{")
    check_refused(folder, CheckpointInvalid, "index")


def test_facts_say_what_was_loaded(served: Callable[[str], ServedModel]) -> None:
    plain, packed = served("tiny").facts, served("tiny_mlx_q4").facts
    assert (plain.id, plain.architecture, plain.vocab_size) == ("tiny", "qwen4_exp", 512)
    assert (plain.context_limit_tokens, plain.dtype, plain.quantization) == (4096, "float32", "none")
    assert plain.has_mtp
    assert not packed.has_mtp
    assert packed.quantization == "4-bit affine, groups of 32"
    assert 200_000 < plain.parameters - packed.parameters < 300_000  # the drafting head, which only one has
    assert packed.weights_bytes < plain.weights_bytes / 2
    assert not plain.embedded


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU multiplies experts in half precision too")
def test_on_a_cpu_auto_is_float32_and_half_precision_experts_are_refused(copy_checkpoint: Copy) -> None:
    assert choose_dtype("auto") == mx.float32
    check_refused(copy_checkpoint("tiny2"), ModelUnsupported, "bfloat16", "auto", dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_forced_dtype_is_kept_and_what_needs_float32_has_it(
    copy_checkpoint: Copy, served: Callable[[str], ServedModel], feed: Any, dtype: str
) -> None:
    model, exact = load_model(str(copy_checkpoint("tiny_mlx_q4")), dtype), served("tiny_mlx_q4")
    assert model.facts.dtype == dtype
    state = model.build_state()
    tokens = (9, 8, 7, 6, 5, 4)
    difference = np.abs(feed(model, state, tokens) - feed(exact, exact.build_state(), tokens)).max()
    assert 0 < difference < 0.5  # one bit of a half precision, not another computation
    kinds = {str(array.dtype).rpartition(".")[2] for array in state.arrays()}
    assert kinds == {dtype, "float32"}  # windows and buffers; recurrent states


def test_small_tensors_of_float32_arithmetic_are_held_so_in_every_dtype(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny_mlx_q4")
    arrays = name_arrays(load_flash_next(folder, read_config(folder), mx.bfloat16).model)
    exact = {name for name, array in arrays.items() if array.dtype == mx.float32}
    rest = {name for name, array in arrays.items() if array.dtype == mx.bfloat16}
    assert any(name.endswith("hc_norm.weight") for name in exact)
    assert all(
        "norm" in name or name.rpartition(".")[2] in ("rate", "dt_bias", "lengths", "qk_factors") for name in exact
    )
    assert not any("norm" in name or "dt_bias" in name for name in rest)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ModelUnsupported, match="int4"):
        choose_dtype("int4")


def test_loading_opens_no_connection(copy_checkpoint: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert load_model(str(copy_checkpoint("tiny2")), "auto").facts.id == "tiny2"
    with pytest.raises(ModelNotFound):
        load_model("mlx-community/Llama-3.2-1B-Instruct-4bit", "auto")
