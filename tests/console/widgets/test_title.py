"""The title says state first and leaves out what matters least."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from console.widgets.lines import line_width
from console.widgets.title import OPEN_SIGN, STATE_WORDS, mtp_word, stale_age_s, title_line

if TYPE_CHECKING:
    from server.snapshot import Snapshot
    from tests.console.conftest import Samples

NOW_S = 5_000.2


def shown(snapshot: Snapshot, width: int, place: str = "homebase") -> str:
    line = title_line(snapshot, place, NOW_S, width)
    assert line_width(line) == width
    return "".join(text for text, _ in line)


def test_all_facts_stand_in_eighty_cells(samples: Samples) -> None:
    text = shown(samples.parent_and_child(), 80)
    for fact in ("● SERVING", "127.0.0.1:11234", "flash-next-4bit", "MTP auto", "up 3:12:44", "2 of 2"):
        assert fact in text


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("state", sorted(STATE_WORDS))
def test_the_state_is_there_at_every_width(samples: Samples, state: str, width: int) -> None:
    symbol, word, _ = STATE_WORDS[state]
    assert f"{symbol} {word}"[: width - 20] in shown(samples.snapshot(state=state), width)


def test_stale_is_marked_only_while_busy(samples: Samples) -> None:
    assert "▲ STALE 7.2 s" in shown(samples.stale(), 80)
    assert stale_age_s(samples.empty(), NOW_S + 100) is None
    assert "STALE" not in shown(samples.parent_and_child(), 80)


def test_a_long_model_name_keeps_its_end(samples: Samples) -> None:
    long = samples.model(id="a-very-long-model-name-that-nobody-can-read-4bit")
    assert "4bit" in shown(samples.snapshot(model=long), 80)


@pytest.mark.parametrize(
    ("mtp", "word"),
    [("off: no head", "MTP off"), ("on (depth 3)", "MTP on"), ("", "MTP -"), ("MTP auto, 3 deep", "MTP auto")],
)
def test_drafting_in_two_words(mtp: str, word: str) -> None:
    assert mtp_word(mtp) == word


def test_other_screens_are_named(samples: Samples) -> None:
    assert "refusals" in shown(samples.empty(), 120, "refusals")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_server_that_answers_strangers_says_so_in_red(samples: Samples, width: int) -> None:
    open_one = samples.snapshot(host="0.0.0.0", answers_strangers=True)
    roles = {role for text, role in title_line(open_one, "homebase", NOW_S, width) if OPEN_SIGN in text}
    assert roles == {"state-error bold"}
    assert OPEN_SIGN not in shown(samples.snapshot(), width)
