"""`homebase-console history` over a real file: each form of output, spans, and what is told when there is none."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from console.cli import main
from console.history_command import FIELDS, app, find_history
from server.history.file import open_for_writing
from server.history.records import RequestRecord
from server.history.schema import insert

EVIL = "\x1b[2Jevil\x9b\u202e"


def build_request(number: int, ago_s: float, **changes: Any) -> RequestRecord:
    plain: dict[str, Any] = {
        "arrived_s": time.time() - ago_s,
        "request_id": f"req-{number}",
        "session": "s",
        "lane": "parent",
        "client": EVIL,
        "model": "nano",
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "decision": "admitted",
        "outcome": "stop",
        "drafted_tokens": 4,
        "accepted_tokens": 3,
    }
    return RequestRecord(**(plain | changes))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A homebase.toml whose history has three requests of the last hours, one of them refused."""
    history = tmp_path / "kept.sqlite3"
    connection = open_for_writing(history)
    refused = build_request(2, 1800, decision="in_flight_full", outcome=None, limit_value=2, used_value=2)
    insert(connection, [build_request(1, 3 * 3600), refused, build_request(3, 60)])
    connection.close()
    path = tmp_path / "homebase.toml"
    path.write_text(f"[history]\npath = '{history}'\n")
    return path


def run(config: Path, *flags: str) -> str:
    done = CliRunner().invoke(app, ["--config", str(config), *flags])
    assert done.exit_code == 0, (done.output, done.exception)
    assert not {"\x1b", "\x9b", "\u202e"} & set(done.output)
    return done.output


def test_a_table_of_the_last_two_hours_with_a_summary(config: Path) -> None:
    lines = run(config).splitlines()
    assert [word in lines[0] for word in ("time", "client", "prompt", "end")] == [True] * 4
    assert "in_flight_full" in lines[1]
    assert "stop" in lines[2]
    assert "\\x1b[2Jevil" in lines[2]
    assert lines[-1].startswith("2 requests; 1 refused (in_flight_full 1); prompt 100 tokens")


@pytest.mark.parametrize("columns", [40, 80, 132])
def test_the_table_fits_the_terminal(config: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert all(len(line) <= columns for line in run(config).splitlines())


def test_spans_go_from_a_moment_to_a_moment(config: Path) -> None:
    def ids(*flags: str) -> list[str]:
        return [json.loads(line)["request_id"] for line in run(config, "--json", *flags).splitlines()]

    assert ids() == ["req-2", "req-3"]
    assert ids("--since", "1d") == ["req-1", "req-2", "req-3"]
    assert ids("--since", "4h", "--until", "90m") == ["req-1"]
    assert ids("--since", "30s") == []
    assert ids("--refusals") == ["req-2"]


def test_json_is_an_object_a_line_in_ascii_that_reads_back(config: Path) -> None:
    _, line = run(config, "--json").splitlines()
    fields = json.loads(line)
    assert tuple(fields) == FIELDS
    assert line.isascii()
    assert (fields["client"], fields["acceptance_ratio"], fields["prompt_tokens"]) == (EVIL, 0.75, 100)


def test_csv_has_a_header_and_the_same_fields(config: Path) -> None:
    head, _, row = csv.reader(io.StringIO(run(config, "--csv")))
    assert tuple(head) == FIELDS
    cells = dict(zip(head, row, strict=True))
    assert (cells["request_id"], cells["prompt_tokens"], cells["ttft_s"]) == ("req-3", "100", "")
    assert cells["client"].startswith("\\x1b[2Jevil")


def test_refusals_say_the_limit(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(config, "--refusals").splitlines()
    assert "refused for" in lines[0]
    assert "2 of 2" in lines[1]
    assert len(lines) == 4


def test_nothing_in_the_span_is_said(config: Path) -> None:
    assert run(config, "--since", "30s") == "Nothing was asked in this time.\n"
    assert run(config, "--since", "30s", "--refusals") == "Nothing was refused in this time.\n"
    assert run(config, "--since", "30s", "--json") == ""
    assert run(config, "--since", "30s", "--csv") == ",".join(FIELDS) + "\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--since", "soon"], "--since: 'soon' is no moment; give for example 90m"),
        (["--until", "later"], "--until: 'later' is no moment"),
        (["--since", "1h", "--until", "2h"], "--since 1h is not before --until 2h"),
        (["--json", "--csv"], "--json and --csv cannot both be"),
        (["--sinse", "1h"], "see homebase-console history --help."),
        (["now"], "see homebase-console history --help."),
        (["--config", "/no/such/folder/homebase.toml"], "there is no folder /no/such/folder"),
    ],
)
def test_what_cannot_be_is_one_sentence(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("homebase-console: ")
    assert words in err
    assert err.count("\n") == 1


def test_no_history_yet_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "homebase.toml"
    path.write_text(f"[history]\npath = '{tmp_path / 'none.sqlite3'}'\n")
    assert main(["history", "--config", str(path)]) == 2
    assert f"There is no history at {tmp_path / 'none.sqlite3'}" in capsys.readouterr().err
    assert not (tmp_path / "none.sqlite3").exists()


def test_a_broken_policy_file_is_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "homebase.toml"
    path.write_text("[history]\nkeep_days = 0\n")
    assert main(["history", "--config", str(path)]) == 2
    assert "homebase.toml:2" in capsys.readouterr().err


def test_a_server_that_would_not_start_has_a_history_all_the_same(config: Path) -> None:
    config.write_text(config.read_text() + "[server]\nhost = '0.0.0.0'\n")  # no key is set
    assert "in_flight_full" in run(config)


def test_the_command_itself_works_into_a_pipe_that_is_closed(config: Path) -> None:
    connection = open_for_writing(find_history(str(config)))
    insert(connection, [build_request(number, 60) for number in range(3000)])  # more than a pipe holds
    connection.close()
    script = Path(sys.executable).parent / "homebase-console"
    done = subprocess.run(
        ["sh", "-c", f"'{script}' history --config '{config}' --since 1d --json | head -n 1"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"TERM": "dumb"},
    )
    assert json.loads(done.stdout)["request_id"] == "req-1"
    assert done.stderr == ""
