"""One decoder layer, cut where its attention must look at each sequence apart."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.delta import GatedDeltaNet
from server.models.flash_next.hyper import HyperConnection
from server.models.flash_next.moe import SparseMoe
from server.models.flash_next.ple import NgramLayer
from server.models.flash_next.sparse import SparseAttention
from server.models.flash_next.state import GROWTH_STEP


class DecoderLayer(nn.Module):
    """Attention and experts, each between a read from and a write to the residual streams."""

    def __init__(self, config: FlashNextConfig, *, sparse: bool, has_ngrams: bool = False) -> None:
        super().__init__()
        self.attn_hyper_connection = HyperConnection(config)
        self.mlp_hyper_connection = HyperConnection(config)
        self.mlp = SparseMoe(config)
        self.sparse = sparse
        if sparse:
            self.self_attn = SparseAttention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.has_ngrams = has_ngrams
        if has_ngrams:
            self.ple = NgramLayer(config)

    def read(self, stream: mx.array) -> tuple[mx.array, mx.array]:
        """The attention's input (T, H) and how strongly its result enters each stream (T, N, 1)."""
        return self.attn_hyper_connection.read(stream)

    def finish(self, stream: mx.array, attended: mx.array, strength: mx.array) -> mx.array:
        """The stream (T, N, H) after the layer, given the attention's result (T, H)."""
        stream = self.attn_hyper_connection.write(stream, attended, strength)
        hidden, strength = self.mlp_hyper_connection.read(stream)
        return self.mlp_hyper_connection.write(stream, self.mlp(hidden), strength)

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        for part in (self.attn_hyper_connection, self.mlp_hyper_connection, self.mlp):
            part.prepare()
        (self.self_attn if self.sparse else self.linear_attn).prepare()
        if self.has_ngrams:
            self.ple.prepare()

    def build_cache(self, dtype: mx.Dtype) -> list[mx.array]:
        """The cache of a sequence that has not begun."""
        return self.self_attn.build_cache(dtype, GROWTH_STEP) if self.sparse else self.linear_attn.build_cache(dtype)
