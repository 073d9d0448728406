"""What must come before any test module is imported."""

from __future__ import annotations

from server.models.blas import use_fast_blas

use_fast_blas()  # test modules import MLX first, for which it would be too late
