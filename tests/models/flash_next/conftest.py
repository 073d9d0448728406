"""The small reference checkpoint written anew in other layouts, and what a loaded one computes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from server.models.cache import DraftSegment
from server.models.flash_next.checkpoint import LoadedFlashNext, load_flash_next
from server.models.flash_next.packed import Piece
from server.models.folder import read_config

FIXTURES = Path(__file__).parents[2] / "fixtures" / "flash_next"
TOKENS = (5, 60, 7, 3, 9, 200, 411, 12, 5, 60, 7, 3, 3, 88, 19, 44, 130, 131, 132, 5, 60, 7, 401, 402, 17, 6, 2, 90, 91)
"""With ends of text inside, and enough of them that queries choose some."""

Tensors = dict[str, mx.array]
Floats = npt.NDArray[np.float32]


@cache
def _read(name: str) -> Tensors:
    tensors = mx.load(str(FIXTURES / name / "model.safetensors"))
    assert isinstance(tensors, dict)
    mx.eval(tensors)
    return tensors


@pytest.fixture
def stored() -> Callable[[str], Tensors]:
    """All tensors of a fixture checkpoint by their names in it; a new dict each time."""
    return lambda name: dict(_read(name))


def mark_eights(file: Path, eights: set[str]) -> None:
    """Name the dtype of these tensors, saved as bytes, what it is: 8-bit floats."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name in eights:
        header[name]["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a checkpoint: the config of a fixture with changes, and files of tensors."""

    def write(
        name: str,
        files: Mapping[str, Tensors],
        change: Callable[[dict[str, Any]], object] = lambda raw: None,
        eights: set[str] | None = None,
    ) -> Path:
        folder = tmp_path / f"checkpoint-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        raw = json.loads((FIXTURES / name / "config.json").read_text())
        change(raw)
        (folder / "config.json").write_text(json.dumps(raw))
        for file, tensors in files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            mx.save_safetensors(str(folder / file), tensors)
            mark_eights(folder / file, (eights or set()) & tensors.keys())
        return folder

    return write


@pytest.fixture
def split_drafter(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a folder with a drafting head alone."""
    return lambda name: Path(shutil.copytree(FIXTURES / name, tmp_path / name))


def load(folder: Path, drafter: Path | None = None) -> LoadedFlashNext:
    return load_flash_next(folder, read_config(folder), mx.float32, drafter)


def judge(loaded: LoadedFlashNext) -> tuple[Floats, Floats | None]:
    """Logits of every row of `TOKENS`, and of the head's first draft after them, if there is one."""
    model = loaded.model
    stream = model.run([Piece(model.build_state(), TOKENS, keeps_trail=False)])
    logits = np.array(model.read_logits(stream))
    if (head := model.drafter) is None:
        return logits, None
    drafted = head.forward([DraftSegment(head.build_state(), stream, (*TOKENS[1:], 11))]).logits[0]
    return logits, np.array(drafted)


@cache
def _judge_fixture(name: str) -> tuple[Floats, Floats | None]:
    return judge(load(FIXTURES / name))


Check = Callable[..., LoadedFlashNext]


@pytest.fixture
def check_same() -> Check:
    """Load a checkpoint and compare its logits, and its head's, with those of another or of a fixture."""

    def check(
        folder: Path,
        like: str | Path = "tiny",
        *,
        drafter: Path | None = None,
        tolerance: float = 0.0,
        drafts: bool = True,
    ) -> LoadedFlashNext:
        loaded = load(folder, drafter)
        ours, theirs = judge(loaded), _judge_fixture(like) if isinstance(like, str) else judge(load(like))
        assert np.abs(ours[0] - theirs[0]).max() <= tolerance
        assert loaded.has_mtp == drafts
        if drafts and theirs[1] is not None:
            assert ours[1] is not None
            assert np.abs(ours[1] - theirs[1]).max() <= tolerance
        return loaded

    return check
