"""What a model path means, judged without weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server.errors import ModelNotFound
from server.models.folder import EMBEDDED_FOLDER, model_name, resolve_model_folder

Copy = Callable[[str], Path]


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "", "a\0b", "x" * 5000, "mlx-community/some-model", "~no-such-user/x"]
)
def test_a_path_that_is_no_folder_is_not_found(path: str) -> None:
    with pytest.raises(ModelNotFound, match="nano"):
        resolve_model_folder(path)


def test_a_folder_without_config_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        resolve_model_folder(str(tmp_path))


def test_a_folder_is_resolved_and_nano_is_the_embedded_one(copy_checkpoint: Copy) -> None:
    folder = copy_checkpoint("tiny2")
    assert resolve_model_folder(f"{folder}/../{folder.name}/") == folder.resolve()
    assert resolve_model_folder("nano") == EMBEDDED_FOLDER


@pytest.mark.parametrize(
    ("path", "name"), [("nano", "nano"), ("/models/Qwen-4bit", "Qwen-4bit"), ("/models/Qwen-4bit/", "Qwen-4bit")]
)
def test_clients_use_the_folders_own_name(path: str, name: str) -> None:
    assert model_name(path) == name


def test_a_relative_dot_has_the_name_of_the_folder_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_name(".") == tmp_path.name


def test_judging_a_path_imports_no_mlx() -> None:
    code = "import sys, server.models.folder; sys.exit('mlx' in sys.modules or 'mlx_lm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
