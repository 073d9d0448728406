from __future__ import annotations

from typing import Any

import pytest

from console.widgets.phases import phase_sign


@pytest.mark.parametrize(
    ("position", "wait_s", "words"),
    [
        (None, None, "waiting"),
        (1, 12.4, "no. 1 in line, about 12 s"),
        (3, None, "no. 3 in line"),
    ],
)
def test_a_request_in_line_says_its_place_and_when_its_turn_comes(
    samples: Any, position: int | None, wait_s: float | None, words: str
) -> None:
    stream = samples.stream(phase="waiting", idle_s=60.0, queue_position=position, expected_wait_s=wait_s)
    assert phase_sign(stream) == ("○", words, "state-waiting")
