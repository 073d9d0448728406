"""One packed pass of the backbone over the rows of several sequences.

Steps of few rows run as compiled functions, longer ones as plain operations of the same code.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import msgspec

from server.models.flash_next.attend import BlockAttention, Parts
from server.models.flash_next.delta import LinearTrail
from server.models.flash_next.layer import DecoderLayer
from server.models.flash_next.rotation import Rotation
from server.models.flash_next.spans import FEW_ROWS, FEW_ROWS_TOTAL, Spans
from server.models.flash_next.stages import StageResult, cut_stages
from server.models.flash_next.state import FlashNextState, Trail

TRACES = 48
"""Divisions of rows into segments whose traces are kept; the one used longest ago goes first."""


class Piece(msgspec.Struct, frozen=True):
    """One sequence's part in a pass."""

    state: FlashNextState
    tokens: tuple[int, ...]
    keeps_trail: bool
    """Whether a rollback may keep some of the tokens."""


Place = tuple[mx.array, Rotation]
"""A segment's offset as an array, and the rotation of the blocks that its rows touch, if they select."""


class SegmentAttention:
    """Sparse attention of single segments: traces are shared by all layers that have one geometry."""

    def __init__(self, geometry: BlockAttention) -> None:
        self.geometry = geometry
        self._few = {selects: mx.compile(partial(geometry.run_few, selects=selects)) for selects in (False, True)}

    def catch_up(self, state: FlashNextState, norms: list[mx.array], rows: int) -> None:
        """Bring block keys up to date when the next few rows will need them; while all is visible none is kept up."""
        offset, ratio = state.offset, self.geometry.ratio
        complete = offset // ratio
        if rows > FEW_ROWS or not self.geometry.selects(offset + rows) or state.blocks_done >= complete:
            return
        sparse = [cache for cache in state.layers if len(cache) == 4]
        for cache, norm in zip(sparse, norms, strict=True):
            cache[3] = self.geometry.fill_blocks(cache, state.blocks_done, complete, norm)
        state.blocks_done = complete

    def find_place(self, state: FlashNextState, rows: int) -> Place:
        """Where the next rows of a sequence stand, made once for all its layers."""
        if rows > FEW_ROWS or not self.geometry.selects(state.offset + rows):
            return mx.array(state.offset), []
        return mx.array(state.offset), self.geometry.rotate_touched(state.offset, rows)

    def run(self, parts: Parts, state: FlashNextState, index: int, norm: mx.array, place: Place) -> mx.array:
        """Attended rows (T, H * D) of one segment in layer `index`."""
        rows = parts[0].shape[0]
        # Nothing else may hold the buffers when they are written to, or the write copies them.
        cache, state.layers[index] = state.layers[index], []
        if rows > FEW_ROWS:
            attended, state.layers[index] = self.geometry.run_rows(parts, cache, state.offset, state.blocks_done, norm)
        else:
            few = self._few[self.geometry.selects(state.offset + rows)]
            attended, state.layers[index] = few(parts, cache, *place, norm)
        return attended

    def count_blocks(self, state: FlashNextState, rows: int) -> None:
        """Note which block keys are there, once all layers have run and the rows are counted."""
        if rows > FEW_ROWS or self.geometry.selects(state.offset):
            state.blocks_done = state.offset // self.geometry.ratio


class PackedPass:
    """Runs the layers of a backbone; owns the traces."""

    def __init__(self, layers: Sequence[DecoderLayer], attention: SegmentAttention) -> None:
        self._stages = cut_stages(layers)
        self._attention = attention
        self._norms = [layer.self_attn.block_norm for layer in layers if layer.sparse]
        self._traces: OrderedDict[Spans, list[Callable[..., StageResult]]] = OrderedDict()

    def run(self, pieces: Sequence[Piece], stream: mx.array, embedded: list[mx.array]) -> mx.array:
        """Append the pieces' rows to their states: the stream (T, N, H) after the last layer.

        `stream` (T, N, H) are the embedded rows of all pieces end to end, `embedded` (T, E) those of each PLE layer.
        """
        states = [piece.state for piece in pieces]
        spans = Spans(tuple(len(piece.tokens) for piece in pieces), tuple(piece.keeps_trail for piece in pieces))
        for state, rows in zip(states, spans.lengths, strict=True):
            state.reserve(rows)
            self._attention.catch_up(state, self._norms, rows)
        rotation = self._attention.geometry.rotate_rows([state.offset for state in states], spans.lengths)
        places = [self._attention.find_place(*each) for each in zip(states, spans.lengths, strict=True)]
        arrays, attended = [stream], list[mx.array]()
        trails: list[list[LinearTrail]] = []
        seen: list[list[mx.array]] = []
        for stage, function in zip(self._stages, self._find(spans), strict=True):
            ngrams = slice(len(seen), len(seen) + stage.ngram_count)
            caches = [[state.layers[index] for state in states] for index, _ in stage.linear]
            windows = [list(by_state) for by_state in zip(*(state.windows[ngrams] for state in states), strict=True)]
            arrays, parts, caches, left, rows = function(rotation, arrays, attended, embedded[ngrams], caches, windows)
            for (index, _), by_state in zip(stage.linear, caches, strict=True):
                for state, cache in zip(states, by_state, strict=True):
                    state.layers[index] = cache
            trails += left
            seen += rows
            if stage.closing:
                index, layer = stage.closing
                norm = layer.self_attn.block_norm
                each = zip(parts, states, places, strict=True)
                attended = [self._attention.run(part, state, index, norm, place) for part, state, place in each]
        self._settle(pieces, trails, seen)
        return arrays[0]

    def _settle(self, pieces: Sequence[Piece], trails: list[list[LinearTrail]], seen: list[list[mx.array]]) -> None:
        """Count the rows that have been put in, and leave what a rollback needs."""
        for number, piece in enumerate(pieces):
            state, offset = piece.state, piece.state.offset
            rows = [by_segment[number] for by_segment in seen]
            state.windows = [new[-old.shape[0] :] for new, old in zip(rows, state.windows, strict=True)]
            state.advance(piece.tokens)
            self._attention.count_blocks(state, len(piece.tokens))
            if piece.keeps_trail:
                linear = tuple(by_segment[number] for by_segment in trails)
                state.keep_trail(Trail(offset=offset, tokens=piece.tokens, linear=linear, windows=tuple(rows)))

    def _find(self, spans: Spans) -> list[Callable[..., StageResult]]:
        """The stages as functions for this division of rows, compiled when they are few."""
        if max(spans.lengths) > FEW_ROWS or spans.total > FEW_ROWS_TOTAL:
            return [partial(stage.run, spans) for stage in self._stages]
        if spans not in self._traces:
            self._traces[spans] = [mx.compile(partial(stage.run, spans)) for stage in self._stages]
        self._traces.move_to_end(spans)
        while len(self._traces) > TRACES:
            self._traces.popitem(last=False)
        return self._traces[spans]
