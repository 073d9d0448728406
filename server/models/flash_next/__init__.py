"""Qwen3.8-Flash-Next (`qwen4_exp`), the text backbone, on MLX."""
