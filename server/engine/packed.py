"""The packed pass of a step: every sequence's tokens through the model at once, and what was drawn after them."""

from __future__ import annotations

from collections.abc import Sequence as Items

import mlx.core as mx
import msgspec

from server.engine.sampler import Drawn
from server.engine.scheduler import Turn
from server.engine.sequence import Sequence
from server.events import TokenLogprob
from server.models.cache import Segment, ServedModel


class Part(msgspec.Struct, frozen=True):
    """One sequence's part in a pass."""

    sequence: Sequence
    turn: Turn
    proposed_tokens: int
    """Drafts of the head, those among them that may not come and so are not verified."""
    drafted: tuple[int, ...]
    segment: Segment
    before: object
    """A checkpoint of the model state: where a fault, or drafts that were not accepted, lead back to."""


class Ran(msgspec.Struct, frozen=True):
    """What a part came to. The state holds all of its tokens; nothing is accepted yet."""

    drawn: tuple[int, ...]
    """The model's choice after each row that was asked for."""
    peaks: tuple[float, ...]
    streams: mx.array | None
    """(T, N, H) of the part's tokens, when its sequence drafts."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of `drawn` when they were asked for."""


def build_part(sequence: Sequence, turn: Turn, proposed: tuple[int, ...]) -> Part:
    """A turn with what it needs to run and to be taken back, of the proposed drafts those that may come."""
    drafted = sequence.cut_at_forbidden(proposed)
    token_ids = sequence.inputs(turn, drafted)
    rows = "all" if drafted else "last" if sequence.completes_prompt(turn) else "none"
    segment = Segment(sequence.state, token_ids, rows)
    return Part(sequence, turn, len(proposed), drafted, segment, sequence.state.checkpoint())


def run_pass(model: ServedModel, parts: Items[Part]) -> list[Ran]:
    """Run all parts in one forward and draw, waiting once."""
    passed = model.forward(tuple(part.segment for part in parts))
    drawn = [
        None if logits is None else part.sequence.draw(logits, part.drafted)
        for part, logits in zip(parts, passed.logits, strict=True)
    ]
    streams = [
        passed.streams[index] if part.sequence.drafter.trail is not None else None for index, part in enumerate(parts)
    ]
    whole = [part.segment.state.arrays() for part in parts if not part.drafted]  # others may be cut first
    mx.eval([each.arrays() for each in drawn if each is not None], [s for s in streams if s is not None], whole)
    return [_read(each, stream) for each, stream in zip(drawn, streams, strict=True)]


def _read(drawn: Drawn | None, streams: mx.array | None) -> Ran:
    if drawn is None:
        return Ran((), (), streams)
    tokens, peaks = drawn.read()
    return Ran(tuple(tokens), tuple(peaks), streams, drawn.logprobs.read() if drawn.logprobs else ())


def take_back(part: Part) -> None:
    """Undo whatever a pass did to a part's sequence."""
    part.segment.state.rollback(part.before)
