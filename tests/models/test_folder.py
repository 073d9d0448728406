"""What a model path means, judged without weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server.errors import ModelNotFound
from server.models.folder import (
    EMBEDDED_FOLDER,
    HubId,
    find_drafter,
    find_model,
    model_name,
    resolve_model_folder,
)

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
    ("path", "name"),
    [("nano", "nano"), ("/models/Qwen-4bit", "Qwen-4bit"), ("/models/Qwen-4bit/", "Qwen-4bit"), ("a/b@v2", "b")],
)
def test_clients_use_the_folders_own_name(path: str, name: str) -> None:
    assert model_name(path) == name


def test_a_relative_dot_has_the_name_of_the_folder_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_name(".") == tmp_path.name


@pytest.mark.parametrize(
    ("path", "repo", "revision"),
    [
        ("mlx-community/Qwen3-4B_x.1", "mlx-community/Qwen3-4B_x.1", None),
        ("owner/name@main", "owner/name", "main"),
        ("owner/name@refs/pr/3", "owner/name", "refs/pr/3"),
    ],
)
def test_an_owner_and_a_name_are_a_model_on_hugging_face(path: str, repo: str, revision: str | None) -> None:
    assert find_model(path) == HubId(repo, revision)
    assert find_drafter(path) == HubId(repo, revision)


def test_a_folder_comes_before_a_model_of_its_name(
    copy_checkpoint: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_checkpoint("tiny2")
    monkeypatch.chdir(tmp_path.parent)
    assert find_model(f"{tmp_path.name}/tiny2") == folder.resolve()
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        find_model(f"{tmp_path.name}/tiny2")


@pytest.mark.parametrize(
    "path",
    [
        "/no/such",
        "./no/such",
        "../no-such",
        "~/no-such",
        "no-such",
        "a/b/c",
        "a/b@",
        "a/",
        "/b",
        "a b/c",
        ".a/b",
        "-a/b",
    ],
)
def test_anything_else_is_a_folder_that_must_be_there(path: str) -> None:
    with pytest.raises(ModelNotFound, match="OWNER/NAME"):
        find_model(path)


def test_a_drafter_may_be_left_out_and_its_home_is_filled_in() -> None:
    assert find_drafter("") is None
    assert find_drafter("~/head") == Path.home() / "head"
    assert find_drafter("heads/some.safetensors/x") == Path("heads/some.safetensors/x")


def test_judging_a_path_imports_no_mlx() -> None:
    code = "import sys, server.models.folder; sys.exit('mlx' in sys.modules or 'mlx_lm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
