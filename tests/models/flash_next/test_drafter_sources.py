"""Drafting heads and tables that lie beside the model, in files and folders of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from server.errors import CheckpointInvalid, ModelError, ModelNotFound, ModelUnsupported
from server.models.flash_next.checkpoint import LoadedFlashNext
from server.models.flash_next.sources import HEAD_FOLDERS, check_drafter
from server.models.loader import load_model

FIXTURES = Path(__file__).parents[2] / "fixtures" / "flash_next"

Tensors = dict[str, mx.array]
Stored = Callable[[str], Tensors]
Write = Callable[..., Path]
Check = Callable[..., LoadedFlashNext]


@pytest.fixture
def headless(stored: Stored, write: Write) -> Path:
    """The reference checkpoint without its drafting head."""
    return write("tiny", {"model.safetensors": _trunk(stored("tiny"))})


def _trunk(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}


def _head(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name.startswith("mtp.")}


def test_without_a_head_nothing_drafts(headless: Path, check_same: Check) -> None:
    check_same(headless, drafts=False)


@pytest.mark.parametrize("name", HEAD_FOLDERS)
def test_a_drafter_in_a_subfolder_is_found(headless: Path, check_same: Check, name: str) -> None:
    shutil.copytree(FIXTURES / "tiny_mtp_drafter", headless / name)
    check_same(headless)


def test_a_subfolder_that_holds_something_else_is_left_alone(headless: Path, check_same: Check) -> None:
    shutil.copytree(FIXTURES / "tiny2", headless / "draft")
    check_same(headless, drafts=False)


def test_a_drafter_that_is_named_drafts(headless: Path, check_same: Check) -> None:
    check_same(headless, drafter=FIXTURES / "tiny_mtp_drafter")


@pytest.mark.parametrize("kind", ["file", "whole checkpoint"])
def test_a_file_or_a_whole_checkpoint_can_be_named(
    headless: Path, check_same: Check, stored: Stored, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "some-head.safetensors"
    mx.save_safetensors(str(file), _head(stored("tiny")))
    check_same(headless, drafter=file if kind == "file" else FIXTURES / "tiny")


def test_a_packed_drafter_stands_for_what_it_unpacks_to(
    headless: Path, stored: Stored, write: Write, check_same: Check
) -> None:
    packed = stored("tiny_mtp_drafter_q4")
    plain = dict(packed)
    for name in [name for name in packed if name.endswith(".scales")]:
        base = name.removesuffix(".scales")
        parts = [plain.pop(f"{base}.{kind}") for kind in ("weight", "scales", "biases")]
        scales, biases = (part.astype(mx.float32) for part in parts[1:])
        plain[f"{base}.weight"] = mx.dequantize(parts[0], scales, biases, group_size=32, bits=4)
    like = write("tiny", {"model.safetensors": _trunk(stored("tiny")), "mtp.safetensors": plain})
    loaded = check_same(headless, like, drafter=FIXTURES / "tiny_mtp_drafter_q4", tolerance=2e-4)
    assert loaded.parameters == check_same(FIXTURES / "tiny").parameters


def test_a_named_drafter_comes_before_one_beside_and_one_inside(
    stored: Stored, write: Write, check_same: Check
) -> None:
    def spoil(tensors: Tensors) -> Tensors:
        return {n: t if t.ndim == 1 else mx.zeros_like(t) for n, t in _head(tensors).items()}

    spoilt = _trunk(stored("tiny")) | spoil(stored("tiny"))
    check_same(write("tiny", {"model.safetensors": spoilt}), drafter=FIXTURES / "tiny_mtp_drafter")
    files = {"model.safetensors": spoilt, "mtp.safetensors": _head(stored("tiny"))}
    check_same(write("tiny", files))
    files["mtp.safetensors"] = spoil(stored("tiny"))
    check_same(write("tiny", files), drafter=FIXTURES / "tiny_mtp_drafter")


def test_the_config_may_name_the_heads_file(stored: Stored, write: Write, check_same: Check) -> None:
    def name_file(raw: dict[str, Any], name: str) -> None:
        raw["mlx_lm_extra_tensors"] = {"mtp_file": name}

    files = {"model.safetensors": _trunk(stored("tiny")), "head-4bit.safetensors": _head(stored("tiny"))}
    check_same(write("tiny", files, lambda raw: name_file(raw, "head-4bit.safetensors")))
    for elsewhere in ("../../head.safetensors", "gone.safetensors"):
        folder = write("tiny", files, lambda raw, name=elsewhere: name_file(raw, name))
        check_refused(folder, None, CheckpointInvalid, Path(elsewhere).name, "drafting head")


def check_refused(folder: Path, drafter: Path | None, kind: type[ModelError], *words: str) -> None:
    """One plain sentence of this kind that says these words."""
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), "auto", drafter=drafter)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message, message


def test_what_is_no_drafter_is_refused(headless: Path, tmp_path: Path) -> None:
    check_refused(headless, tmp_path / "nothing", ModelNotFound, "draft_path", "nothing")
    check_refused(headless, headless / "config.json", ModelNotFound, "draft_path")
    other = shutil.copytree(FIXTURES / "tiny_mtp_drafter", tmp_path / "other")
    (other / "config.json").write_text('{"model_type": "llama"}')
    check_refused(headless, other, CheckpointInvalid, "'llama'", "draft_path")
    (other / "config.json").write_text('{"model_type": "qwen4_exp_mtp"}')
    (other / "model.safetensors").unlink()
    check_refused(headless, other, ModelNotFound, "no weights")
    assert check_drafter(FIXTURES / "tiny_mtp_drafter") == FIXTURES / "tiny_mtp_drafter"


def test_a_drafter_of_another_model_is_refused_by_its_shapes(headless: Path, tmp_path: Path, stored: Stored) -> None:
    check_refused(headless, FIXTURES / "tiny2", CheckpointInvalid, "mtp.", "called for")
    file = tmp_path / "half.safetensors"
    mx.save_safetensors(str(file), dict(sorted(_head(stored("tiny")).items())[:20]))
    check_refused(headless, file, CheckpointInvalid, "lacks", "mtp.", "more")


def test_a_truncated_file_beside_the_model_is_told(stored: Stored, write: Write) -> None:
    for name in ("mtp.safetensors", "ngram-table.safetensors"):
        folder = write(
            "tiny",
            {"model.safetensors": _trunk(stored("tiny")), name: _head(stored("tiny"))},
            lambda raw: raw["text_config"].update(ngram_sidecar=True),
        )
        (folder / name).write_bytes((folder / name).read_bytes()[:9000])
        check_refused(folder, None, CheckpointInvalid, name, "cut short")


def test_a_table_that_the_config_says_is_beside_must_be_there(stored: Stored, write: Write) -> None:
    tensors = {name: tensor for name, tensor in stored("tiny").items() if ".ngram_embedding." not in name}
    folder = write("tiny", {"model.safetensors": tensors}, lambda raw: raw["text_config"].update(ngram_sidecar=True))
    check_refused(folder, None, CheckpointInvalid, "ngram-table.safetensors")
    plain = write("tiny", {"model.safetensors": tensors})
    check_refused(plain, None, CheckpointInvalid, "n-gram table of layer 1 is missing")


def test_one_table_beside_is_not_enough_for_two_layers(stored: Stored, write: Write) -> None:
    tensors = {name: tensor for name, tensor in stored("tiny2").items() if ".ngram_embedding." not in name}
    files = {"model.safetensors": tensors, "ngram-table.safetensors": {"ngram.weight": mx.zeros((9, 32))}}
    check_refused(write("tiny2", files), None, ModelUnsupported, "2 of them")


def test_a_drafter_is_no_model_and_only_this_architecture_has_one(headless: Path, tmp_path: Path) -> None:
    check_refused(FIXTURES / "tiny_mtp_drafter", None, ModelUnsupported, "drafting head alone", "draft_path")
    other = shutil.copytree(headless, tmp_path / "other")
    (other / "config.json").write_text('{"model_type": "llama"}')
    check_refused(other, FIXTURES / "tiny_mtp_drafter", ModelUnsupported, "'llama'", "draft_path")
