"""The engine: token ids in, token ids out. It knows no text, JSON, HTTP or stop string."""

from server.models.blas import use_fast_blas

use_fast_blas()  # before anything here imports MLX
