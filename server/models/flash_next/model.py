"""The text backbone of `qwen4_exp`: token ids in, widened streams and logits out.

Knows no file, and of sequences only their state.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from server.models.flash_next.attend import BlockAttention
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.hyper import HyperMixer
from server.models.flash_next.layer import DecoderLayer
from server.models.flash_next.linear import HeadLinear, read_as_projection
from server.models.flash_next.mtp import FlashNextMtp, MtpLayer
from server.models.flash_next.ngrams import NgramHash
from server.models.flash_next.packed import PackedPass, Piece, SegmentAttention
from server.models.flash_next.spans import FEW_ROWS_TOTAL
from server.models.flash_next.state import FlashNextState
from server.models.flash_next.table import NgramTable

PASS_ROWS = 1024
"""Longest part of a prompt that a CPU runs at once: its caches hold the rows of so many. Nano's first 2048 tokens take
1.13 s at once and 0.89 s in two parts (one core of 2 x86, MLX 0.32.4, 2026-11-30)."""


class FlashNext(nn.Module):
    """The backbone with its output head and, if the checkpoint has it, the drafting head's weights.

    Load weights, then call `prepare` once.
    """

    def __init__(self, config: FlashNextConfig, *, has_mtp: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [
            DecoderLayer(config, sparse=sparse, has_ngrams=index in config.ple_indices)
            for index, sparse in enumerate(config.sparse_layers)
        ]
        self.hyper_connection_mixer = HyperMixer(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if has_mtp:
            self.mtp = MtpLayer(config)

    def prepare(self, hashes: Sequence[NgramHash], tables: Sequence[NgramTable], dtype: mx.Dtype) -> None:
        """Give the model its n-gram tables, one per PLE layer in ascending order, and evaluate all weights."""
        self._ngrams = tuple(zip(hashes, tables, strict=True))
        self._dtype = dtype
        mtp: MtpLayer | None = self.get("mtp")
        for part in [*self.layers, self.hyper_connection_mixer, *([mtp] if mtp else [])]:
            part.prepare()
            mx.eval(part.parameters())  # layer by layer: the stored arrays are let go before the next are read
        tied = self.config.tie_word_embeddings
        self.head = HeadLinear(read_as_projection(self.embed_tokens) if tied else self.pop("lm_head"))
        mx.eval(self.parameters())
        attention = SegmentAttention(BlockAttention(self.config))
        self._pass = PackedPass(self.layers, attention)
        self._read_few = mx.compile(self._read)
        self._drafter = FlashNextMtp(mtp, self.embed_tokens, self.head, attention, dtype) if mtp else None

    @property
    def drafter(self) -> FlashNextMtp | None:
        """The head that drafts for it; None when the checkpoint has none."""
        return self._drafter

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in its states' rows."""
        return self._dtype.size

    def build_state(self) -> FlashNextState:
        """An empty state for a new sequence."""
        config = self.config
        return FlashNextState(
            [layer.build_cache(self._dtype) for layer in self.layers],
            [layer.ple.build_cache(self._dtype) for layer in self.layers if layer.has_ngrams],
            sparse=config.sparse_layers,
            recent=(config.hash_eos,) * (config.ngram_size - 1),
            ratio=config.indexer_compress_ratio,
        )

    def run(self, pieces: Sequence[Piece]) -> mx.array:
        """Append the pieces' tokens to their states: the streams (T, N, H) before the final mixer, end to end."""
        if mx.default_device() != mx.cpu or max(len(piece.tokens) for piece in pieces) <= PASS_ROWS:
            return self._run_pass(pieces)
        cut = [_cut(piece) for piece in pieces]
        leading = [[self._run_pass([part]) for part in parts[:-1]] for parts in cut]
        last = [parts[-1] for parts in cut]
        ends = list(accumulate(len(piece.tokens) for piece in last))
        trailing = mx.split(self._run_pass(last), ends[:-1], axis=0)
        return mx.concatenate([rows for first, end in zip(leading, trailing, strict=True) for rows in (*first, end)])

    def _run_pass(self, pieces: Sequence[Piece]) -> mx.array:
        embedded = self._look_up(pieces)
        tokens = mx.array([token for piece in pieces for token in piece.tokens])
        return self._pass.run(pieces, self._widen(tokens), embedded)

    def read_logits(self, stream: mx.array) -> mx.array:
        """Logits (T, V) in float32 of stream rows (T, N, H)."""
        return self._read_few(stream) if stream.shape[0] <= FEW_ROWS_TOTAL else self._read(stream)

    def _read(self, stream: mx.array) -> mx.array:
        return self.head(self.hyper_connection_mixer(stream)).astype(mx.float32)

    def _look_up(self, pieces: Sequence[Piece]) -> list[mx.array]:
        """The n-gram embeddings (T, E) of each PLE layer; hashed and gathered on the host."""
        gathered: list[mx.array] = []
        for ngram_hash, table in self._ngrams:
            rows = [ngram_hash.find_rows(piece.state.recent, piece.tokens) for piece in pieces]
            gathered.append(table.gather(np.concatenate(rows) if len(rows) > 1 else rows[0]))
        return gathered

    def _widen(self, tokens: mx.array) -> mx.array:
        rows = self.embed_tokens(tokens)[:, None].astype(self._dtype)  # (T, 1, H); some packings give bfloat16
        return mx.broadcast_to(rows, (rows.shape[0], self.config.hc_count, rows.shape[2]))


def _cut(piece: Piece) -> list[Piece]:
    """A piece in parts of nearly one length that each fit into a pass; whole when it may be rolled back within."""
    count = 1 if piece.keeps_trail else -(-len(piece.tokens) // PASS_ROWS)
    size = -(-len(piece.tokens) // count)
    starts = range(0, len(piece.tokens), size)
    return [Piece(piece.state, piece.tokens[start : start + size], piece.keeps_trail) for start in starts]
