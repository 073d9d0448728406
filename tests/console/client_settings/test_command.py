"""`homebase-console client` in a home of its own: the list, the print, the merge."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.cli import main
from console.client_settings import command
from console.client_settings.clients import CLIENTS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, a homebase.toml whose port nobody listens at, and no settings of the developer's."""
    for name in ("CODEX_HOME", "XDG_CONFIG_HOME", "GROK_HOME", "CLAUDE_CONFIG_DIR", "HOMEBASE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "homebase.toml"
    config.write_text("[server]\nport = 1\n[policy]\nmax_context_tokens = 9000\n")
    monkeypatch.setenv("HOMEBASE_CONFIG", str(config))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["client", *arguments]) == code
    out, err = capsys.readouterr()
    return out + err


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]):
    out = run(capsys)
    for name, client in CLIENTS.items():
        assert f"{name} " in out
        assert client.title in out
    assert "~/.codex/config.toml" in out


@pytest.mark.parametrize("name", CLIENTS)
def test_each_is_printed_and_nothing_is_written(name: str, home: Path, capsys: pytest.CaptureFixture[str]):
    out = run(capsys, name)
    assert "http://127.0.0.1:1" in out
    assert "No server says at http://127.0.0.1:1/v1" in out
    assert [path.name for path in home.iterdir()] == ["homebase.toml"]


def test_an_unknown_one_is_told_with_those_there_are(capsys: pytest.CaptureFixture[str]):
    out = run(capsys, "emacs", code=2)
    assert "'emacs'" in out
    assert "codex" in out


def test_with_write_and_yes_the_difference_is_shown_and_merged(home: Path, capsys: pytest.CaptureFixture[str]):
    file = home / ".codex" / "config.toml"
    file.parent.mkdir()
    file.write_text('# mine\nmodel = "other"\n')
    out = run(capsys, "codex", "--write", "--yes")
    assert '-model = "other"' in out
    assert 'model = "nano"' in file.read_text()
    assert "model_context_window = 9000" in file.read_text()
    (backup,) = file.parent.glob("config.toml.bak-*")
    assert backup.name in out
    assert "says so already" in run(capsys, "codex", "--write", "--yes")
    assert len(list(file.parent.iterdir())) == 2


def test_nothing_is_written_unless_somebody_says_yes(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert "--yes" in run(capsys, "codex", "--write", code=2), "no terminal to ask at"
    monkeypatch.setattr(command, "_confirm", lambda question: False)
    assert "Nothing was written" in run(capsys, "codex", "--write", code=1)
    assert not (home / ".codex").exists()


def test_path_names_another_file_and_only_that_is_written(home: Path, capsys: pytest.CaptureFixture[str]):
    file = home / "elsewhere.json"
    run(capsys, "opencode", "--write", "--yes", "--path", str(file))
    assert "homebase/nano" in file.read_text()
    assert {path.name for path in home.iterdir()} == {"homebase.toml", "elsewhere.json"}


@pytest.mark.parametrize(("name", "told"), [("qwen", "environment"), ("aider", "environment"), ("continue", "YAML")])
def test_what_cannot_be_merged_says_so(name: str, told: str, home: Path, capsys: pytest.CaptureFixture[str]):
    (home / ".continue").mkdir()
    (home / ".continue" / "config.yaml").write_text("name: mine\n")
    assert told in run(capsys, name, "--write", "--yes", code=2)
    assert (home / ".continue" / "config.yaml").read_text() == "name: mine\n"


def test_a_flag_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    out = run(capsys, "codex", "--nonsense", code=2)
    assert out.startswith("homebase-console: ")
    assert out.count("\n") == 1
