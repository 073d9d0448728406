"""Models on MLX: Flash Next, any other architecture of mlx-lm, their states and their loader."""
