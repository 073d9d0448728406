"""The multi-token-prediction head: from the model's stream at a row, and the next token, to the token after it."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from server.models.cache import DraftForward, DraftSegment
from server.models.flash_next.attend import Parts
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.hyper import HyperMixer
from server.models.flash_next.layer import DecoderLayer
from server.models.flash_next.linear import HeadLinear, SingleLinear
from server.models.flash_next.norms import FactorRMSNorm
from server.models.flash_next.packed import SegmentAttention
from server.models.flash_next.rotation import Rotation
from server.models.flash_next.spans import FEW_ROWS, FEW_ROWS_TOTAL, Spans, join
from server.models.flash_next.stages import split_parts
from server.models.flash_next.state import FlashNextState


class MtpLayer(nn.Module):
    """The head's weights: one sparse layer between a join of stream and token, and a mixer of its own.

    Embedding and output head are the model's.
    """

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc_embedding = nn.Linear(hidden, hidden, bias=False)
        self.fc_hidden = nn.Linear(hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = FactorRMSNorm(hidden, config.rms_norm_eps)
        # One mean over all streams, unlike the norms of the hyper-connections.
        self.pre_fc_norm_hidden = FactorRMSNorm(config.stream_width, config.rms_norm_eps)
        self.layers = [DecoderLayer(config, sparse=True)]
        self.hyper_connection_mixer = HyperMixer(config)

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        self.from_token, self.from_stream = SingleLinear(self.fc_embedding), SingleLinear(self.fc_hidden)
        del self.fc_embedding, self.fc_hidden
        self.layers[0].prepare()
        self.hyper_connection_mixer.prepare()

    def join_rows(self, streams: mx.array, embedded: mx.array) -> mx.array:
        """The layer's stream (T, N, H) of a model's streams (T, N, H) and embedded next tokens (T, H)."""
        normed = self.pre_fc_norm_hidden(streams.flatten(1)).reshape(-1, streams.shape[-1])  # (T * N, H)
        token = self.from_token(self.pre_fc_norm_embedding(embedded))
        return self.from_stream(normed).reshape(streams.shape) + token[:, None]


class FlashNextMtp:
    """Drafts for a backbone; packed over sequences, each with a state of its own."""

    def __init__(
        self,
        weights: MtpLayer,
        embedding: nn.Embedding | nn.QuantizedEmbedding,
        head: HeadLinear,
        attention: SegmentAttention,
        dtype: mx.Dtype,
    ) -> None:
        self._weights, self._embedding, self._head = weights, embedding, head
        self._attention, self._dtype = attention, dtype
        self._layer = weights.layers[0]
        # Traced anew for each number of rows and of segments, of which there are few.
        self._enter_few, self._leave_few = mx.compile(self._enter), mx.compile(self._leave)

    def build_state(self) -> FlashNextState:
        """The head's empty state for a new sequence: one sparse layer's buffers, so any rollback is only an offset."""
        cache, ratio = self._layer.build_cache(self._dtype), self._attention.geometry.ratio
        return FlashNextState([cache], [], sparse=(True,), recent=(), ratio=ratio)

    def forward(self, segments: Sequence[DraftSegment]) -> DraftForward:
        """Append each segment's rows to its state: logits and stream of each one's last row."""
        states = [_own(segment.state) for segment in segments]
        spans = Spans(tuple(segment.streams.shape[0] for segment in segments), (False,) * len(segments))
        few = max(spans.lengths) <= FEW_ROWS and spans.total <= FEW_ROWS_TOTAL
        enter, leave = (self._enter_few, self._leave_few) if few else (self._enter, self._leave)
        tokens = join([_as_array(segment.token_ids) for segment in segments])
        rotation = self._attention.geometry.rotate_rows([state.offset for state in states], spans.lengths)
        stream, strength, gate, parts = enter(join([segment.streams for segment in segments]), tokens, rotation)
        attended = join(self._attend(states, split_parts(parts, spans)))
        last = mx.array([end - 1 for end in spans.ends])
        streams, logits = leave(stream, strength, gate, attended, last)
        one = range(len(segments))
        return DraftForward(
            logits=tuple(logits[i : i + 1] if segments[i].wants_logits else None for i in one),
            streams=tuple(streams[i : i + 1] for i in one),
        )

    def _attend(self, states: list[FlashNextState], parts: list[Parts]) -> list[mx.array]:
        norm = self._layer.self_attn.block_norm
        attended: list[mx.array] = []
        for state, part in zip(states, parts, strict=True):
            rows = part[0].shape[0]
            state.reserve(rows)
            self._attention.catch_up(state, [norm], rows)
            attended.append(self._attention.run(part, state, 0, norm, self._attention.find_place(state, rows)))
            state.advance((0,) * rows)
            self._attention.count_blocks(state, rows)
        return attended

    def _enter(
        self, streams: mx.array, tokens: mx.array, rotation: Rotation
    ) -> tuple[mx.array, mx.array, mx.array, Parts]:
        stream = self._weights.join_rows(streams, self._embedding(tokens).astype(streams.dtype))
        hidden, strength = self._layer.read(stream)
        parts, gate = self._layer.self_attn.project(hidden, rotation)
        return stream, strength, gate, parts

    def _leave(
        self, stream: mx.array, strength: mx.array, gate: mx.array, attended: mx.array, last: mx.array
    ) -> tuple[mx.array, mx.array]:
        # Only the last rows are read: keys and values of the others are in, the rest of them nobody wants.
        result = self._layer.self_attn.close(attended[last], gate[last])
        stream = self._layer.finish(stream[last], result, strength[last])
        logits = self._head(self._weights.hyper_connection_mixer(stream)).astype(mx.float32)
        return stream, logits


def _own(state: object) -> FlashNextState:
    assert isinstance(state, FlashNextState)
    return state


def _as_array(tokens: tuple[int, ...] | mx.array) -> mx.array:
    return tokens if isinstance(tokens, mx.array) else mx.array(tokens)
