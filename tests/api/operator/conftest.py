"""A file for the operator's endpoints to write, and a pulse that tests need not wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.api.operator import events, snapshots
from server.policy_file.template import build_template
from server.policy_store import PolicyStore

TEXT = """\
# ada's machine
[server]
api_key = "very-secret"

[policy]
max_in_flight = 2   # parent + 1
"""


@pytest.fixture
def file(rig: Any, tmp_path: Path) -> Path:
    """A homebase.toml that the rig's store has loaded, with a flag of this run before it."""
    path = tmp_path / "homebase.toml"
    path.write_text(TEXT)
    flags = {"server.port": (12000, "--port")}
    rig.store = PolicyStore(path, build_template().encode(), flags, rig.ring.publish, environment={})
    rig.store.load()
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (events, snapshots):
        monkeypatch.setattr(module, "EVERY_S", 0.002)
