"""What `homebase-console bench` says of itself and of flags that cannot be, before anything is started."""

from __future__ import annotations

import pytest

from console.cli import main


def test_without_an_experiment_those_there_are_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["bench"]) == 0
    assert "fan-out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--streams", "x"], "--streams: 'x'"),
        (["--context", "2m"], "--context: '2m'"),
        (["--tokens", "1"], "tokens"),
        (["--url", "http://127.0.0.1:1", "--model", "nano"], "leave out --model"),
        (["--url", "http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
    ],
)
def test_what_cannot_be_is_one_sentence(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "fan-out", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("homebase-console: ")
    assert err.count("\n") == 1
    assert told in err
