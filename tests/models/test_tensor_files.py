"""Headers of safetensors files, read without loading a tensor."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from server.errors import CheckpointInvalid
from server.models.tensor_files import read_header, scan_checkpoint


def write(file: Path, header: Any, body: bytes = b"\0" * 8) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return file


def test_shapes_and_places_are_those_that_were_saved(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    mx.save_safetensors(str(file), {"x": mx.arange(6, dtype=mx.int64).reshape(2, 3), "y": mx.ones((4,), mx.bfloat16)})
    found = read_header(file)
    assert {name: (info.dtype, info.shape) for name, info in found.items()} == {
        "x": ("I64", (2, 3)),
        "y": ("BF16", (4,)),
    }
    content = file.read_bytes()[found["x"].start : found["x"].end]
    assert [int.from_bytes(content[i : i + 8], "little") for i in range(0, 48, 8)] == list(range(6))


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        [],
        {"x": {}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0]}},
        {"x": {"dtype": "F32", "shape": "2", "data_offsets": [0, "?"]}},
        {"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [float("inf"), 1]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [float("nan"), 8]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8.5]}},
        {"x": {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 8]}},
        {"x": None},
    ],
)
def test_a_header_that_does_not_add_up_is_invalid(tmp_path: Path, header: Any) -> None:
    with pytest.raises(CheckpointInvalid, match=r"a\.safetensors"):
        read_header(write(tmp_path / "a.safetensors", header))


@pytest.mark.parametrize("content", [b"", b"\1", b"\xff" * 8, (2**60).to_bytes(8, "little") + b"{}"])
def test_a_length_that_cannot_be_is_invalid(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointInvalid, match=r"a\.safetensors"):
        read_header(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of one tensor, without an index."""
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"x": mx.zeros((2,))})
    return tmp_path


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["/etc/passwd"], "outside of its folder: /etc/passwd"),
        (["../model.safetensors"], "outside of its folder"),
        (["model.safetensors", "a/../../b"], "outside of its folder"),
        (["a" * 5000], "lacks files that its index names: aaa"),
        (["a\0b"], "lacks files"),
        ([], "names no file"),
        ([7], "not a readable index"),
        ([None], "not a readable index"),
    ],
)
def test_an_index_that_names_no_file_of_the_folder_is_invalid(folder: Path, names: list[Any], words: str) -> None:
    weight_map = {str(place): name for place, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointInvalid) as caught:
        scan_checkpoint(folder)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', "[" * 100_000, '{"weight_map": "x"}'])
def test_an_index_that_is_none_is_invalid(folder: Path, content: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointInvalid, match="not a readable index"):
        scan_checkpoint(folder)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["model.safetensors", "model-2.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_regular_file_is_not_waited_for(folder: Path, name: str, kind: str) -> None:
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).mkdir()
    reason = "is not a readable index" if name.endswith(".json") else "cannot be read: it is no regular file"
    with pytest.raises(CheckpointInvalid, match=f"{name} {reason}"):
        scan_checkpoint(folder)
