"""The text backbone of `qwen4_exp`: token ids in, widened streams and logits out.

Knows no file, and of sequences only their state. Many rows run as plain operations; one row, the decode step, as a
compiled function of token, position and cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.delta import GatedDeltaNet
from server.models.flash_next.hyper import HyperConnection, HyperMixer
from server.models.flash_next.linear import SingleLinear
from server.models.flash_next.moe import SparseMoe
from server.models.flash_next.ngrams import NgramHash
from server.models.flash_next.ple import NgramLayer
from server.models.flash_next.sparse import RowPlan, SparseAttention
from server.models.flash_next.state import GROWTH_STEP, FlashNextState
from server.models.flash_next.table import NgramTable

Attend = Callable[[mx.array], tuple[mx.array, list[mx.array]]]
"""Runs one layer's attention on rows (T, H): the result, and the layer's cache after it."""
RowStep = Callable[..., tuple[mx.array, mx.array, list[list[mx.array]], list[mx.array]]]
"""A decode step: stream, logits, and the caches of all layers and all PLE windows after it."""


class DecoderLayer(nn.Module):
    """One layer: attention and experts, each between a read from and a write to the residual streams."""

    def __init__(self, config: FlashNextConfig, index: int) -> None:
        super().__init__()
        self.attn_hyper_connection = HyperConnection(config)
        self.mlp_hyper_connection = HyperConnection(config)
        self.mlp = SparseMoe(config)
        self.sparse = config.sparse_layers[index]
        if self.sparse:
            self.self_attn = SparseAttention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.has_ngrams = index in config.ple_indices
        if self.has_ngrams:
            self.ple = NgramLayer(config)

    def __call__(self, stream: mx.array, attend: Attend) -> tuple[mx.array, list[mx.array]]:
        """The stream (T, N, H) after the layer, and the layer's cache."""
        hidden, strength = self.attn_hyper_connection.read(stream)
        attended, cache = attend(hidden)
        stream = self.attn_hyper_connection.write(stream, attended, strength)
        hidden, strength = self.mlp_hyper_connection.read(stream)
        return self.mlp_hyper_connection.write(stream, self.mlp(hidden), strength), cache

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


class FlashNext(nn.Module):
    """The backbone with its output head. Load weights, then call `prepare` once."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [DecoderLayer(config, index) for index in range(config.num_hidden_layers)]
        self.hyper_connection_mixer = HyperMixer(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def prepare(self, hashes: Sequence[NgramHash], tables: Sequence[NgramTable], dtype: mx.Dtype) -> None:
        """Give the model its n-gram tables, one per PLE layer in ascending order, and evaluate all weights."""
        self._ngrams = tuple(zip(hashes, tables, strict=True))
        self._dtype = dtype
        self._row_steps: dict[RowPlan, RowStep] = {}
        for part in [*self.layers, self.hyper_connection_mixer]:
            part.prepare()
            mx.eval(part.parameters())  # layer by layer: the stored arrays are let go before the next are read
        self.head = SingleLinear(self.lm_head)
        del self.lm_head
        mx.eval(self.parameters())

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

    def run(self, state: FlashNextState, tokens: tuple[int, ...]) -> mx.array:
        """Append tokens to the state: the widened stream (T, N, H) before the final mixer."""
        *_, stream = self.run_layers(state, tokens)
        return stream

    def run_layers(self, state: FlashNextState, tokens: tuple[int, ...]) -> Iterator[mx.array]:
        """As `run`, giving the stream after each layer; the state is whole again when all have been drawn."""
        state.reserve(len(tokens))
        embedded = self._look_up(state, tokens)
        stream = self._widen(mx.array(tokens))
        windows: list[mx.array] = []
        for index, layer in enumerate(self.layers):
            if layer.has_ngrams:
                place = len(windows)
                stream, window = layer.ple(stream, embedded[place], state.windows[place])
                windows.append(window)
            stream, state.layers[index] = layer(stream, _attend_rows(layer, state, state.layers[index]))
            if index == len(self.layers) - 1:
                state.windows = windows
                state.advance(tokens)
                state.blocks_done = state.offset // self.config.indexer_compress_ratio
            yield stream

    def run_row(self, state: FlashNextState, token: int) -> tuple[mx.array, mx.array]:
        """Append one token: the widened stream (1, N, H) before the final mixer, and its logits (1, V)."""
        state.reserve(1)
        plan = self._plan_row(state)
        step = self._row_steps.get(plan)
        if step is None:
            step = self._row_steps[plan] = mx.compile(self._build_row_step(plan))
        embedded = self._look_up(state, (token,))
        stream, logits, state.layers, state.windows = step(
            mx.array([token]), mx.array(state.offset), embedded, state.layers, state.windows
        )
        state.advance((token,))
        if plan.finishes:
            state.blocks_done += 1
        return stream, logits

    def read_logits(self, stream: mx.array) -> mx.array:
        """Logits (T, V) in float32 of stream rows (T, N, H)."""
        return self.head(self.hyper_connection_mixer(stream)).astype(mx.float32)

    def _look_up(self, state: FlashNextState, tokens: tuple[int, ...]) -> list[mx.array]:
        """The n-gram embeddings (T, E) of each PLE layer; hashed and gathered on the host."""
        return [table.gather(ngram_hash.find_rows(state.recent, tokens)) for ngram_hash, table in self._ngrams]

    def _widen(self, tokens: mx.array) -> mx.array:
        rows = self.embed_tokens(tokens)[:, None]  # (T, 1, H)
        return mx.broadcast_to(rows, (rows.shape[0], self.config.hc_count, rows.shape[2]))

    def _plan_row(self, state: FlashNextState) -> RowPlan:
        """How the next row will attend; brings the block keys up to date when it must choose.

        While everything is visible no block key is needed, so decode steps leave them out.
        """
        ratio = self.config.indexer_compress_ratio
        complete, after = state.offset // ratio, (state.offset + 1) // ratio
        if after * ratio <= self.config.indexer_budget:
            return RowPlan(selects=False, finishes=False)
        if state.blocks_done < complete:
            for layer, cache in zip(self.layers, state.layers, strict=True):
                if layer.sparse:
                    cache[3] = layer.self_attn.fill_blocks(cache, state.blocks_done, complete)
            state.blocks_done = complete
        return RowPlan(selects=True, finishes=after > complete)

    def _build_row_step(self, plan: RowPlan) -> RowStep:
        """The decode step as a pure function: no array but the weights comes from outside its arguments."""

        def step(
            token: mx.array,
            offset: mx.array,
            embedded: list[mx.array],
            caches: list[list[mx.array]],
            windows: list[mx.array],
        ) -> tuple[mx.array, mx.array, list[list[mx.array]], list[mx.array]]:
            stream = self._widen(token)
            next_caches: list[list[mx.array]] = []
            next_windows: list[mx.array] = []
            for layer, cache in zip(self.layers, caches, strict=True):
                if layer.has_ngrams:
                    place = len(next_windows)
                    stream, window = layer.ple(stream, embedded[place], windows[place])
                    next_windows.append(window)
                stream, cache = layer(stream, _attend_row(layer, cache, offset, plan))
                next_caches.append(cache)
            return stream, self.read_logits(stream), next_caches, next_windows

        return step


def _attend_rows(layer: DecoderLayer, state: FlashNextState, cache: list[mx.array]) -> Attend:
    if layer.sparse:
        return lambda rows: layer.self_attn.run_rows(rows, cache, state.offset, state.blocks_done)
    return lambda rows: layer.linear_attn(rows, cache)


def _attend_row(layer: DecoderLayer, cache: list[mx.array], offset: mx.array, plan: RowPlan) -> Attend:
    if layer.sparse:
        return lambda rows: layer.self_attn.run_row(rows, cache, offset, plan)
    return lambda rows: layer.linear_attn(rows, cache)
