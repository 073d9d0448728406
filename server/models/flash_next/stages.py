"""The backbone cut at its sparse layers: between two of them everything is fixed by how many rows each segment has.

Sparse attention depends on positions and on buffers that grow; a stage does not, and so it is traced once for each
division of rows into segments, at whatever context these stand.
"""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx

from server.models.flash_next.attend import Parts
from server.models.flash_next.delta import LinearTrail
from server.models.flash_next.layer import DecoderLayer
from server.models.flash_next.rotation import Rotation
from server.models.flash_next.spans import Spans, join

Numbered = tuple[int, DecoderLayer]
StageResult = tuple[
    list[mx.array],
    list[Parts],
    list[list[list[mx.array]]],
    list[list[LinearTrail]],
    list[list[mx.array]],
]
"""Stream, and at a sparse layer strength and gate; what each segment's attention works on; then by layer and segment:
caches, trails, and the rows that each PLE convolution saw."""


class Stage:
    """The way from one sparse layer's attention to the next one's; the first begins, and the last ends, without."""

    def __init__(self, opening: Numbered | None, linear: list[Numbered], closing: Numbered | None) -> None:
        self.opening, self.linear, self.closing = opening, linear, closing
        entered = [*linear, closing] if closing else linear
        self.ngram_count = sum(layer.has_ngrams for _, layer in entered)

    def run(
        self,
        spans: Spans,
        rotation: Rotation,
        arrays: list[mx.array],
        attended: list[mx.array],
        embedded: list[mx.array],
        caches: list[list[list[mx.array]]],
        windows: list[list[mx.array]],
    ) -> StageResult:
        """All of it, for rows of segments end to end; `arrays` and `attended` are what the stage before handed on."""
        stream = self._open(arrays, attended)
        after: list[list[list[mx.array]]] = []
        trails: list[list[LinearTrail]] = []
        seen: list[list[mx.array]] = []
        for (_, layer), cache in zip(self.linear, caches, strict=True):
            stream = _add_ngrams(layer, stream, embedded, windows, seen, spans)
            hidden, strength = layer.read(stream)
            result, by_segment, trail = layer.linear_attn(hidden, cache, spans)
            stream = layer.finish(stream, result, strength)
            after.append(by_segment)
            trails.append(trail)
        if self.closing is None:
            return [stream], [], after, trails, seen
        layer = self.closing[1]
        stream = _add_ngrams(layer, stream, embedded, windows, seen, spans)
        hidden, strength = layer.read(stream)
        parts, gate = layer.self_attn.project(hidden, rotation)
        return [stream, strength, gate], split_parts(parts, spans), after, trails, seen

    def _open(self, arrays: list[mx.array], attended: list[mx.array]) -> mx.array:
        if self.opening is None:
            return arrays[0]
        stream, strength, gate = arrays
        layer = self.opening[1]
        return layer.finish(stream, layer.self_attn.close(join(attended), gate), strength)


def cut_stages(layers: Iterable[DecoderLayer]) -> list[Stage]:
    """The stages of a backbone, one more than it has sparse layers."""
    stages: list[Stage] = []
    opening: Numbered | None = None
    linear: list[Numbered] = []
    for numbered in enumerate(layers):
        if not numbered[1].sparse:
            linear.append(numbered)
            continue
        stages.append(Stage(opening, linear, numbered))
        opening, linear = numbered, []
    return [*stages, Stage(opening, linear, None)]


def split_parts(parts: Parts, spans: Spans) -> list[Parts]:
    """What attention works on, segment by segment."""
    qk, values, index_queries, index_keys = (spans.split(part) for part in parts)
    return list(zip(qk, values, index_queries, index_keys, strict=True))


def _add_ngrams(
    layer: DecoderLayer,
    stream: mx.array,
    embedded: list[mx.array],
    windows: list[list[mx.array]],
    seen: list[list[mx.array]],
    spans: Spans,
) -> mx.array:
    """The stream with the layer's n-gram part, if it has one; `seen` grows by what its convolutions saw."""
    if not layer.has_ngrams:
        return stream
    place = len(seen)
    stream, rows = layer.ple(stream, embedded[place], windows[place], spans)
    seen.append(rows)
    return stream
