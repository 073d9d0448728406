"""What keeps a model from being loaded is told in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FEW_FILES = """
import resource, sys
from server.core import _import_libraries
from server.errors import StartupError

resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 513))
except ValueError:
    pass
else:
    sys.exit(3)
try:
    _import_libraries()
except StartupError as error:
    print(error)
"""


def test_a_hard_limit_of_few_open_files_is_named() -> None:
    folder = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", FEW_FILES], capture_output=True, text=True, cwd=folder, timeout=60)
    if done.returncode == 3:
        pytest.skip("this user may raise any limit")
    assert "512 files" in done.stdout, done.stderr
    assert "ulimit" in done.stdout
