"""Flash Next as the engine sees it: facts, states, and logits of segments."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import msgspec

from server.memory_plan import StreamCost
from server.models.cache import Forward, ModelFacts, MtpHead, Segment
from server.models.flash_next.model import FlashNext
from server.models.flash_next.packed import Piece
from server.models.flash_next.spans import Spans, join
from server.models.flash_next.state import FlashNextState
from server.models.weights import name_arrays
from server.step_reads import StepReads, TimedSteps

REHEARSED_ROWS = 64
"""Rows of a rehearsed prefill: enough to take the ways of a long one."""


class ServedFlashNext:
    """A loaded backbone. Built and called on the engine thread only."""

    def __init__(self, model: FlashNext, facts: ModelFacts) -> None:
        self._model = model
        self._facts = facts

    @property
    def facts(self) -> ModelFacts:
        """What it is."""
        return self._facts

    def build_state(self) -> FlashNextState:
        """An empty state for a new sequence."""
        return self._model.build_state()

    @property
    def mtp(self) -> MtpHead | None:
        """The head that drafts for it; None when the checkpoint has none."""
        return self._model.drafter

    def rehearse(self) -> None:
        """Run each kind of step once on blank states, so that its kernels are built before a request waits for them.

        Past the attention budget a decode step has other kernels. The CPU backend compiles each by the system's C++
        compiler, a third of a second apiece on the first start of a machine; without one nothing is fused.
        """
        config = self._model.config
        past = config.indexer_budget + config.indexer_compress_ratio
        mx.eval(self.forward([Segment(state=self.build_state(), token_ids=(0,) * REHEARSED_ROWS)]).logits[0])
        for offset in (0, past - 1, past):
            state = self._build_at(offset)
            mx.eval(self.forward([Segment(state=state, token_ids=(0,))]).logits[0], state.arrays())

    def build_far(self) -> FlashNextState:
        """A blank state just past the attention's budget."""
        return self._build_at(self._model.config.indexer_budget + self._model.config.indexer_compress_ratio)

    def _build_at(self, offset: int) -> FlashNextState:
        state = self.build_state()
        state.leap(offset)
        return state

    def note_times(self, timed: TimedSteps) -> None:
        """Keep with the facts what steps took."""
        self._facts = msgspec.structs.replace(self._facts, timed=timed)

    def forward(self, segments: Sequence[Segment]) -> Forward:
        """Append each segment's tokens to its state, all segments in one packed pass."""
        # In an order of their own, so that steps that differ only in who comes first share a trace.
        order = sorted(range(len(segments)), key=lambda i: (len(segments[i].token_ids), segments[i].rows))
        streams = self._run([segments[i] for i in order])
        wanted = [_wanted_rows(segments[i], stream) for i, stream in zip(order, streams, strict=True)]
        logits = iter(self._read([rows for rows in wanted if rows is not None]))
        ordered = [None if rows is None else next(logits) for rows in wanted]
        back = [order.index(i) for i in range(len(segments))]
        return Forward(logits=tuple(ordered[i] for i in back), streams=tuple(streams[i] for i in back))

    def _run(self, segments: Sequence[Segment]) -> list[mx.array]:
        pieces = [
            Piece(_own(segment.state), segment.token_ids, segment.rows == "all" and len(segment.token_ids) > 1)
            for segment in segments
        ]
        stream = self._model.run(pieces)
        return Spans(tuple(len(piece.tokens) for piece in pieces), (False,) * len(pieces)).split(stream)

    def _read(self, rows: list[mx.array]) -> list[mx.array]:
        """Logits of each group of stream rows; the output head runs once."""
        if not rows:
            return []
        logits = self._model.read_logits(join(rows))
        return Spans(tuple(group.shape[0] for group in rows), (False,) * len(rows)).split(logits)


def measure_stream(model: FlashNext) -> StreamCost:
    """What a sequence's state takes, the head's with it, by the shapes of its arrays."""
    costs = [model.build_state().cost, *([model.drafter.build_state().cost] if model.drafter else [])]
    return StreamCost(sum(cost.fixed_bytes for cost in costs), sum(cost.token_bytes for cost in costs))


def measure_reads(model: FlashNext) -> StepReads:
    """What a decode step reads, by the arrays of the loaded weights, in whatever way each is packed.

    Of the embedding and of the n-gram table it reads a row for each token, which is left out. Keys, values and block
    keys are those of section 3 of the model's sizes: 2 * Hkv * D numbers a token and sparse layer, and Di for each
    block of `indexer_compress_ratio`.
    """
    config = model.config
    sizes = {name: array.nbytes for name, array in name_arrays(model).items() if not name.startswith("embed_tokens.")}
    trunk = {name: size for name, size in sizes.items() if not name.startswith("mtp.")}
    experts = sum(size for name, size in trunk.items() if ".experts." in name)
    sparse_layers, linear_states = sum(config.sparse_layers), model.build_state().cost.fixed_bytes
    number_bytes = model.number_bytes
    return StepReads(
        dense_bytes=sum(trunk.values()) - experts,
        expert_bytes=experts // (config.num_experts * config.num_hidden_layers),
        experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        expert_layers=config.num_hidden_layers,
        context_bytes=2 * config.num_key_value_heads * config.head_dim * number_bytes * sparse_layers,
        attended_tokens=config.indexer_budget,
        index_bytes=config.indexer_head_dim * number_bytes * sparse_layers // config.indexer_compress_ratio,
        state_bytes=linear_states,
        head_bytes=_count_head(sizes, config.num_experts_per_tok / config.num_experts) if model.drafter else 0,
    )


def _count_head(sizes: dict[str, int], chosen_ratio: float) -> int:
    """Of a call of the MTP head for one row: its layer with the experts that are chosen, and the model's output."""
    own = {name: size for name, size in sizes.items() if name.startswith("mtp.")}
    experts = sum(size for name, size in own.items() if ".experts." in name)
    output = sum(size for name, size in sizes.items() if name.startswith("head."))
    return sum(own.values()) - experts + int(experts * chosen_ratio) + output


def _wanted_rows(segment: Segment, stream: mx.array) -> mx.array | None:
    if segment.rows == "none":
        return None
    return stream[-1:] if segment.rows == "last" and stream.shape[0] > 1 else stream


def _own(state: object) -> FlashNextState:
    assert isinstance(state, FlashNextState)
    return state
