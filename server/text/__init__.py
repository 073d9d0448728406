"""Text on one side, token ids on the other: tokenizer, chat template, stops."""

from server.models.blas import use_fast_blas

use_fast_blas()  # before anything here imports MLX
