"""The command line: flags, where homebase.toml is looked for, and one sentence for whatever keeps it from starting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from console.cli import find_config, main, read_options, user_config
from server.errors import PolicyInvalid, StartupError
from server.listen import bind_socket


@pytest.fixture
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a terminal were there."""
    monkeypatch.setattr("console.terminal.check_terminal", lambda: None)


def check_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs the command, expects exit code 2 and one sentence on stderr alone; returns the sentence."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("homebase-console: ")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert "Traceback" not in err
    return err


def test_flags_are_overrides_for_one_run_with_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOMEBASE_CONFIG", raising=False)
    options = read_options(["--headless", "--model", "/m", "--host", "::1", "--port", "8080", "--mtp", "3"])
    assert options.headless
    assert options.overrides == {
        "model.path": ("/m", "--model"),
        "server.host": ("::1", "--host"),
        "server.port": (8080, "--port"),
        "engine.mtp": (3, "--mtp"),
    }
    assert read_options([]).overrides == {}
    assert not read_options([]).headless


@pytest.mark.parametrize("port", ["0", "70000", "-1", "eleven", "", "8080.5"])
def test_a_port_out_of_range_names_the_flag_and_the_range(port: str):
    with pytest.raises(PolicyInvalid, match=r"^--port: .*1 to 65,535"):
        read_options([f"--port={port}"])


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("off", "off"), ("1", 1), ("4", 4)])
def test_drafting_is_set_by_word_or_depth(text: str, value: object):
    assert read_options(["--mtp", text]).overrides["engine.mtp"] == (value, "--mtp")


@pytest.mark.parametrize("text", ["0", "5", "on", "", "2.0"])
def test_drafting_that_cannot_be_names_the_flag_and_what_can(text: str):
    with pytest.raises(PolicyInvalid, match=r"^--mtp: .*\"auto\", \"off\", 1, 2, 3, 4"):
        read_options([f"--mtp={text}"])


def test_config_is_looked_for_in_the_documented_order(tmp_path: Path):
    flag, named, folder = tmp_path / "flag.toml", tmp_path / "named.toml", tmp_path / "folder"
    folder.mkdir()
    environ = {"HOMEBASE_CONFIG": str(named)}
    assert find_config(str(flag), environ, folder) == flag
    assert find_config(None, environ, folder) == named
    assert find_config(None, {}, folder) == user_config()
    (folder / "homebase.toml").write_text("")
    assert find_config(None, {}, folder) == folder / "homebase.toml"
    assert find_config(None, {"HOMEBASE_CONFIG": ""}, folder) == folder / "homebase.toml"


def test_a_config_that_is_not_there_yet_is_fine_but_a_folder_must_be(tmp_path: Path):
    assert find_config(str(tmp_path / "new.toml"), {}, tmp_path) == tmp_path / "new.toml"
    with pytest.raises(StartupError, match="no folder"):
        find_config(str(tmp_path / "absent" / "homebase.toml"), {}, tmp_path)
    with pytest.raises(StartupError, match=r"\$HOMEBASE_CONFIG names the folder"):
        find_config(None, {"HOMEBASE_CONFIG": str(tmp_path)}, tmp_path)


def test_a_port_in_use_names_who_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with bind_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        sentence = check_refused(
            ["--headless", "--config", str(tmp_path / "homebase.toml"), "--port", str(port)], capsys
        )
    assert f"127.0.0.1:{port} is in use" in sentence
    assert "--port" in sentence


def test_an_unknown_flag_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["--prot", "80"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "homebase-console: unrecognized arguments: --prot 80; see --help.\n"


def test_help_explains_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for word in ("--headless", "--config", "--model", "--host", "--port", "--version", "$HOMEBASE_CONFIG"):
        assert word in text
    for word in ("./homebase.toml", "exit codes", "ctrl+q", "SIGTERM", str(user_config())):
        assert word in text
    assert max(len(line) for line in text.splitlines() if str(user_config()) not in line) < 80


@pytest.mark.parametrize("headless", [["--headless"], []])
@pytest.mark.usefixtures("a_terminal")
def test_a_broken_file_is_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], headless: list[str]):
    config = tmp_path / "homebase.toml"
    config.write_text("[policy]\nmax_in_flight = 'two'\n")
    sentence = check_refused([*headless, "--config", str(config)], capsys)
    assert "homebase.toml:2" in sentence
    assert "1 to 64" in sentence


def test_what_a_file_says_does_not_reach_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "homebase.toml"
    config.write_text('[policy]\n"\\u001b[2Jx" = 1\n')
    assert r"\x1b[2Jx" in check_refused(["--headless", "--config", str(config)], capsys)


@pytest.mark.parametrize(
    "redirection",
    [
        "2>&-",
        "<&- >&- 2>&-",
        pytest.param("2>/dev/full", marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")),
    ],
)
def test_the_exit_code_tells_where_stderr_cannot(redirection: str):
    script = Path(sys.executable).parent / "homebase-console"
    done = subprocess.run(["sh", "-c", f"'{script}' --headless --config /no/such/file {redirection}"], timeout=30)
    assert done.returncode == 2


@pytest.mark.parametrize("headless", [["--headless"], []])
@pytest.mark.usefixtures("a_terminal")
def test_an_absent_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], headless: list[str]):
    config = tmp_path / "homebase.toml"
    sentence = check_refused([*headless, "--config", str(config), "--model", str(tmp_path / "absent")], capsys)
    assert "no model folder" in sentence
    assert "nano" in sentence


def test_a_model_with_an_unreadable_configuration_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "config.json").write_text("{")
    sentence = check_refused(
        ["--headless", "--config", str(tmp_path / "homebase.toml"), "--model", str(tmp_path)], capsys
    )
    assert "config.json is not valid JSON" in sentence


def test_an_address_of_another_machine_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "homebase.toml"
    config.write_text('[server]\napi_key = "k"\n')
    assert "192.0.2.1:8123" in check_refused(
        ["--headless", "--config", str(config), "--host", "192.0.2.1", "--port", "8123"], capsys
    )


def test_an_address_for_everyone_is_refused_without_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told = check_refused(["--headless", "--config", str(tmp_path / "none.toml"), "--host", "0.0.0.0"], capsys)
    assert told.startswith(
        "homebase-console: --host: server.host 0.0.0.0 answers other machines too, and no key is set"
    )


def test_a_key_that_is_named_and_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "homebase.toml"
    config.write_text('[server.keys]\nalice = "HOMEBASE_TEST_GONE"\n')
    told = check_refused(["--headless", "--config", str(config)], capsys)
    assert told.startswith("homebase-console: homebase.toml:")
    assert "HOMEBASE_TEST_GONE is not set" in told


def test_without_a_terminal_the_console_says_what_to_do(tmp_path: Path):
    command = [Path(sys.executable).parent / "homebase-console", "--config", tmp_path / "homebase.toml"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == (
        "homebase-console: The console needs a terminal to read keys from; use --headless to serve without one.\n"
    )
    assert ran.stdout == ""


LIGHT = """
import sys
from console.cli import main
try:
    main([{flag!r}])
except SystemExit as leaving:
    assert leaving.code == 0
heavy = {{"textual", "rich", "mlx", "quart", "hypercorn", "transformers", "typer"}} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(flag: str):
    subprocess.run([sys.executable, "-c", LIGHT.format(flag=flag)], check=True, capture_output=True)


def test_a_library_that_cannot_be_imported_is_one_sentence():
    script = "import sys; sys.modules['mlx.core'] = None; from console.cli import main; sys.exit(main(['--headless']))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("homebase-console: a library is missing or does not work here")
    assert ran.stderr.count("\n") == 1
