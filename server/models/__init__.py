"""Models on MLX: Flash Next, any other architecture of mlx-lm, their states and their loader."""

from server.models.blas import use_fast_blas

use_fast_blas()  # before anything here imports MLX
