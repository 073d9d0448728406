"""The policy of homebase.toml for commands that run beside the server, read and never written."""

from __future__ import annotations

import os
from pathlib import Path

from console.config_file import find_config
from server.policy import Policy
from server.policy_file.document import EMPTY, read_document
from server.policy_file.replace import read_bytes


def read_policy(config: str | None) -> Policy:
    """What homebase.toml says, defaults without one. Raises PolicyInvalid for a file that is not in order."""
    path = find_config(config, os.environ, Path.cwd())
    data = read_bytes(path)
    return (EMPTY if data is None else read_document(data, path.name)).policy
