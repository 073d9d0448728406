"""Headers of safetensors files, read without loading a tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from server.errors import CheckpointInvalid
from server.models.tensor_files import read_header


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
