"""PLE: a layer's own embedding of the last few tokens, added to the widened stream."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.activations import sigmoid, silu
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.conv import DepthwiseConv
from server.models.flash_next.linear import JoinedLinear
from server.models.flash_next.norms import StreamRMSNorm
from server.models.flash_next.spans import Spans, join

ROOT_FLOOR = 1e-6
"""Smallest magnitude under the root of a score. Source: `qwen4_exp` of transformers 5.24."""


class NgramLayer(nn.Module):
    """Gates an n-gram embedding by its match with each stream, then convolves it over time.

    Cache: the last rows (width, N*H) of the convolution's normed input.
    """

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        self.hidden, self.stream_width = config.hidden_size, config.stream_width
        self.key_proj = nn.Linear(config.ple_embed_dim, config.stream_width, bias=False)
        self.value_proj = nn.Linear(config.ple_embed_dim, config.hidden_size, bias=False)
        norm = (config.hc_count, config.hidden_size, config.rms_norm_eps)
        self.norm_key, self.norm_query, self.norm_conv = (StreamRMSNorm(*norm) for _ in range(3))
        self.conv1d = DepthwiseConv(config.stream_width, config.ple_conv_kernel_size, dilation=config.ngram_size)

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        self.inputs = JoinedLinear(self.key_proj, self.value_proj)
        for part in (self.norm_key, self.norm_query, self.norm_conv, self.conv1d):
            part.prepare()
        del self.key_proj, self.value_proj

    def build_cache(self, dtype: mx.Dtype) -> mx.array:
        """The window of a sequence that has not begun."""
        return mx.zeros((self.conv1d.width, self.stream_width), dtype)

    def __call__(
        self, stream: mx.array, embedded: mx.array, windows: list[mx.array], spans: Spans
    ) -> tuple[mx.array, list[mx.array]]:
        """The stream (T, N, H) with its n-gram part added, for table rows (T, E), and the rows each convolution saw.

        The last of those rows, as many as a window has, are the segment's next window.
        """
        keys, value = self.inputs(embedded)
        match = (self.norm_key(keys.reshape(stream.shape)) * self.norm_query(stream)).astype(mx.float32)
        score = match.sum(axis=-1, keepdims=True) * self.hidden**-0.5  # (T, N, 1)
        score = mx.sign(score) * mx.sqrt(mx.maximum(mx.abs(score), ROOT_FLOOR))
        gated = sigmoid(score).astype(value.dtype) * value[:, None]  # (T, N, H)
        parts = spans.split(self.norm_conv(gated).flatten(1))
        convolved = [self.conv1d(part, window) for part, window in zip(parts, windows, strict=True)]
        mixed = join([part for part, _ in convolved])
        return stream + gated + silu(mixed).reshape(stream.shape), [rows for _, rows in convolved]
