"""What an installed homebase-console looks like: its wheel, its one script, its two package names."""

from __future__ import annotations

import itertools
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_no_other_distribution_provides_our_package_names() -> None:
    owners = packages_distributions()
    for package in ("console", "server"):
        assert set(owners.get(package, ["homebase-console"])) == {"homebase-console"}


def test_one_script_is_the_way_in() -> None:
    scripts = [
        entry.name for entry in distribution("homebase-console").entry_points if entry.group == "console_scripts"
    ]
    assert scripts == ["homebase-console"]
    assert not list(ROOT.glob("*.py"))


def test_wheel_carries_template_themes_and_nano(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert "console/_data/homebase.toml" in names
    assert {f"console/_data/themes/{path.name}" for path in (ROOT / "themes").glob("*.toml")} <= names
    assert {"server/models/nano/model.safetensors", "server/models/nano/tokenizer.json"} <= names


def test_wheel_carries_nothing_but_the_product(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"console", "server"}
    assert not [name for name in wheel.namelist() if "training" in name]


def test_every_dependency_says_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    start = lines.index("dependencies = [") + 1
    block = lines[start : lines.index("]", start)]
    assert block[0].lstrip().startswith("#")
    for above, line in itertools.pairwise(block):
        same_reason = above.lstrip().startswith('"mlx') and line.lstrip().startswith('"mlx[')
        if not line.lstrip().startswith("#"):
            assert above.lstrip().startswith("#") or same_reason, line
