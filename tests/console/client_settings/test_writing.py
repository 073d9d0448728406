"""A settings file is replaced whole, after a backup, and only when it is still the one that was shown."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from console.client_settings.writing import apply_change, plan_change
from server.errors import StartupError

VALUES = {"model": "nano"}


def test_what_was_there_is_kept_beside_it_with_its_mode(tmp_path: Path):
    path = tmp_path / "config.toml"
    path.write_bytes(b'# mine\r\nmodel = "old"\r\n')
    path.chmod(0o600)
    change = plan_change(path, VALUES, "toml")
    assert '-model = "old"' in change.diff
    assert '+model = "nano"' in change.diff
    backup = apply_change(change, 0.0)
    assert backup is not None
    assert backup.name.startswith("config.toml.bak-19")
    assert backup.read_bytes() == b'# mine\r\nmodel = "old"\r\n'
    assert path.read_bytes() == b'# mine\r\nmodel = "nano"\r\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(tmp_path.iterdir()) == sorted([path, backup])


def test_no_backup_is_written_over_another(tmp_path: Path):
    path = tmp_path / "c.toml"
    for number in range(3):
        path.write_text(f"a = {number}\n")
        apply_change(plan_change(path, VALUES, "toml"), 0.0)
    assert len(list(tmp_path.glob("c.toml.bak-*"))) == 3


def test_a_new_file_is_made_with_its_folder(tmp_path: Path):
    path = tmp_path / "new" / "settings.json"
    assert apply_change(plan_change(path, VALUES, "json"), 0.0) is None
    assert path.read_text() == '{\n  "model": "nano"\n}\n'


def test_a_link_stays_one(tmp_path: Path):
    real, link = tmp_path / "dotfiles.toml", tmp_path / "config.toml"
    real.write_text("a = 1\n")
    link.symlink_to(real)
    apply_change(plan_change(link, VALUES, "toml"), 0.0)
    assert link.is_symlink()
    assert "nano" in real.read_text()


def test_nothing_is_written_over_a_change_made_meanwhile(tmp_path: Path):
    path = tmp_path / "c.toml"
    path.write_text("a = 1\n")
    change = plan_change(path, VALUES, "toml")
    path.write_text("a = 2\n")
    with pytest.raises(StartupError, match="changed meanwhile"):
        apply_change(change, 0.0)
    assert path.read_text() == "a = 2\n"


def test_what_it_says_already_changes_nothing(tmp_path: Path):
    path = tmp_path / "c.toml"
    path.write_text('model = "nano"\n')
    assert plan_change(path, VALUES, "toml").diff == ""


def test_a_file_that_cannot_be_read_or_made_is_told(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(StartupError, match="UTF-8"):
        plan_change(tmp_path / "file", VALUES, "toml")
    with pytest.raises(StartupError, match="cannot be read"):
        plan_change(tmp_path, VALUES, "toml")
