"""Commands beside the server read the same homebase.toml as it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.running_policy import read_policy
from server.errors import PolicyInvalid
from server.policy import Policy


def test_the_file_is_read_and_its_absence_means_defaults(tmp_path: Path):
    path = tmp_path / "homebase.toml"
    assert read_policy(str(path)) == Policy()
    path.write_text("[policy]\nmax_in_flight = 7\n")
    assert read_policy(str(path)).policy.max_in_flight == 7


def test_a_broken_file_is_told_with_its_line(tmp_path: Path):
    path = tmp_path / "homebase.toml"
    path.write_text("[policy]\nmax_in_flight = 'two'\n")
    with pytest.raises(PolicyInvalid, match=r"homebase\.toml:2"):
        read_policy(str(path))
