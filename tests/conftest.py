"""What must come before any test module is imported."""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

from server.models.blas import use_fast_blas

# Servers of tests remember their requests in a file; the user's own is none of theirs.
_DATA = tempfile.TemporaryDirectory(prefix="homebase-tests-")
os.environ["XDG_DATA_HOME"] = _DATA.name

# How long an example takes says more of the machine than of the code.
settings.register_profile("homebase", deadline=None)
settings.load_profile("homebase")

use_fast_blas()  # test modules import MLX first, for which it would be too late
