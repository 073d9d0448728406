"""How fast a fetch is and how long it will take; and that asking for that costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from server.models.fetch import FetchPace


@pytest.mark.parametrize(
    ("notes", "rate", "eta"),
    [
        ([(0, 0)], None, None),
        ([(0, 0), (2, 200)], 100.0, 8.0),
        ([(0, 0), (2, 200), (20, 200)], 0.0, None),
        ([(0, 500), (10, 1000)], 50.0, 0.0),
        ([(t, 10 * t) for t in range(50)], 10.0, 51.0),
        ([(0, 100), (1, 0)], 0.0, None),
    ],
)
def test_the_pace_is_that_of_the_last_seconds(
    notes: list[tuple[float, int]], rate: float | None, eta: float | None
) -> None:
    pace = FetchPace()
    views = [pace.note(now, done, 1000) for now, done in notes]
    assert views[-1].rate_bps == rate
    assert views[-1].eta_s == (pytest.approx(eta) if eta is not None else None)


def test_asking_a_name_imports_no_hub() -> None:
    code = "import sys, server.models.fetch; sys.exit('huggingface_hub' in sys.modules or 'mlx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
