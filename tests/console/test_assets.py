"""Shipped files are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from console import assets


def test_the_checkout_has_its_files() -> None:
    assert (assets.themes_folder() / "homebase-dark.toml").is_file()
    assert assets.config_template().is_file()


def test_an_installed_package_uses_its_own_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "console" / "_data" / "themes").mkdir(parents=True)
    (tmp_path / "console" / "_data" / "homebase.toml").touch()
    monkeypatch.setattr(assets, "_PACKAGE", tmp_path / "console")
    assert assets.themes_folder() == tmp_path / "console" / "_data" / "themes"
    assert assets.config_template() == tmp_path / "console" / "_data" / "homebase.toml"
