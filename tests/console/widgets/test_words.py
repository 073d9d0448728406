"""What the home screen says in one line when something is unusual."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.cells import cell_len

from console.widgets.words import notice_lines
from server.snapshot import Snapshot

if TYPE_CHECKING:
    from tests.console.conftest import Samples

OPEN = "server.host 0.0.0.0 answers other machines too, and server.api_key is empty."
NOW_S = 5_000.2


def tell(snapshot: Snapshot, *warnings: str, width: int = 120, rows: int = 3) -> list[str]:
    lines = notice_lines(snapshot, warnings, NOW_S, width, rows)
    return ["".join(text for text, _ in line) for line in lines]


def with_problem(snapshot: Snapshot, problem: str, *, exists: bool = True) -> Snapshot:
    policy = msgspec.structs.replace(snapshot.policy, problem=problem, exists=exists, path="/etc/box.toml")
    return msgspec.structs.replace(snapshot, policy=policy)


def test_an_ordinary_state_says_nothing(samples: Samples) -> None:
    assert tell(samples.one_decode()) == []


def test_a_warning_of_the_policy_is_told_with_a_symbol(samples: Samples) -> None:
    assert tell(samples.one_decode(), OPEN) == [f" ▲ {OPEN}"]


def test_a_problem_and_a_warning_are_both_told_the_graver_first(samples: Samples) -> None:
    shown = tell(with_problem(samples.one_decode(), "box.toml:3: nonsense."), OPEN)
    assert shown == [" ✕ box.toml is not in force: box.toml:3: nonsense.", f" ▲ {OPEN}"]


def test_a_file_that_is_gone_is_a_warning_and_not_called_broken(samples: Samples) -> None:
    assert tell(with_problem(samples.one_decode(), "box.toml is gone.", exists=False)) == [" ▲ box.toml is gone."]


def test_the_hint_about_the_embedded_model_gives_way(samples: Samples) -> None:
    assert "tiny" in tell(samples.nano())[0]
    assert tell(samples.nano(), OPEN) == [f" ▲ {OPEN}"]


def test_a_long_sentence_goes_on_in_a_second_row(samples: Samples) -> None:
    assert tell(samples.one_decode(), OPEN, width=62) == [
        " ▲ server.host 0.0.0.0 answers other machines too, and",
        "   server.api_key is empty.",
    ]


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("width", [60, 80, 142])
def test_notices_keep_to_their_room(samples: Samples, rows: int, width: int) -> None:
    broken = with_problem(samples.stale(), "box.toml:3: " + "a very long reason " * 20)
    shown = tell(broken, OPEN, OPEN, width=width, rows=rows)
    assert 1 <= len(shown) <= rows
    assert all(cell_len(line) <= width for line in shown)
    assert shown[0].startswith(" ✕ box.toml is not in force")
