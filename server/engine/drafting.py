"""Drafting with a model's MTP head: what a sequence's head has read, and the tokens it proposes. Engine thread only.

Row p of the head is the model's stream at position p with the token at p + 1, so the head can be read up to where the
model is and no further. What the model has read or verified is handed over by `feed` and waits here; the head reads
all that waits, of every sequence in one packed call, when drafts are wanted next, and that call's last row is the
first draft. Rows of drafts are computed from the head's own streams and thrown away after each round: what stays in
the head comes from the model's streams alone, whatever was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx
import msgspec

from server.models.cache import DraftSegment, MtpHead, SequenceState

LAG_ROWS = 32
"""Rows that may wait while nothing is drafted: then they are read in one call, which costs little more than one row.
They hold 20 KB each with the real model's sizes."""


class DraftTrail:
    """One sequence's side of the head: its state, and the rows that it has not read yet."""

    def __init__(self, state: SequenceState) -> None:
        self.state = state
        self._streams: list[mx.array] = []
        self._token_ids: list[int] = []

    @property
    def waiting_rows(self) -> int:
        """Rows that were fed and not read."""
        return len(self._token_ids)

    @property
    def rows(self) -> int:
        """Rows read and waiting: as many as the model has tokens of this sequence, once a round is over."""
        return self.state.offset + self.waiting_rows

    def feed(self, streams: mx.array, next_ids: Sequence[int]) -> None:
        """Hand over the model's streams (T, N, H) of kept tokens, each with the token after it."""
        assert streams.shape[0] == len(next_ids), "a row of the head takes one stream and one token"
        self._streams.append(streams)
        self._token_ids.extend(next_ids)

    def build_segment(self, *, wants_logits: bool) -> DraftSegment:
        """All rows that wait."""
        if len(self._streams) > 1:
            self._streams = [mx.concatenate(self._streams)]
        return DraftSegment(self.state, self._streams[0], tuple(self._token_ids), wants_logits)

    def fork(self, next_id: int) -> DraftTrail:
        """The same for a sequence that parts from this one here: `next_id` is its token after what the model has read.

        The row of that token always waits, for the head reads only in a step that feeds rows after it.
        """
        assert self._token_ids, "the newest row waits"
        trail = DraftTrail(self.state.fork())
        trail._streams, trail._token_ids = [*self._streams], [*self._token_ids[:-1], next_id]
        return trail

    @property
    def newest_stream(self) -> mx.array:
        """The stream (1, N, H) of the newest row, which always waits: the head reads only in a step that feeds more."""
        return self._streams[-1][-1:]

    def read_up(self, head: MtpHead) -> None:
        """Let the head read all rows that wait but the newest, whose token is not the same in every continuation."""
        count = self.waiting_rows - 1
        if count < 1:
            return
        before, streams = self.state.checkpoint(), mx.concatenate(self._streams)
        try:
            head.forward((DraftSegment(self.state, streams[:count], tuple(self._token_ids[:count]), False),))
            mx.eval(self.state.arrays())
        except Exception:
            self.state.rollback(before)
            raise
        self._streams, self._token_ids = [mx.contiguous(streams[count:])], self._token_ids[count:]

    def settle(self) -> None:
        """The rows that waited are in the state."""
        self._streams, self._token_ids = [], []


class DraftJob(msgspec.Struct, frozen=True):
    """What one sequence wants of the head in a step; without drafts, only to be caught up."""

    trail: DraftTrail
    depth: int
    draw: Callable[[mx.array, Sequence[mx.array]], mx.array]
    """Draws a draft from logits (1, V) after the drafts (1,) that this round has so far: one token id (1,), lazy."""
    before: object
    """A checkpoint of the head's state before the step."""


def propose(head: MtpHead, jobs: Sequence[DraftJob]) -> list[tuple[int, ...]]:
    """Let the head read what waits, then draft to each job's depth; the drafts. Waits once, for all of them.

    Drafts go from one depth to the next unread. Each state is then as long as the model's own.
    """
    passed = head.forward(tuple(job.trail.build_segment(wants_logits=job.depth > 0) for job in jobs))
    caught_up = [job.trail.state.checkpoint() if job.depth > 1 else None for job in jobs]
    drafts: list[list[mx.array]] = [[] for _ in jobs]
    live = [index for index, job in enumerate(jobs) if job.depth]
    logits, streams = [passed.logits[i] for i in live], [passed.streams[i] for i in live]
    while live:
        for index, row in zip(live, logits, strict=True):
            assert row is not None, "logits were asked for"
            drafts[index].append(jobs[index].draw(row, drafts[index]))  # (1,)
        deeper = [
            (index, DraftSegment(jobs[index].trail.state, stream, drafts[index][-1]))
            for index, stream in zip(live, streams, strict=True)
            if len(drafts[index]) < jobs[index].depth
        ]
        live = [index for index, _ in deeper]
        if live:
            passed = head.forward([segment for _, segment in deeper])
            logits, streams = list(passed.logits), list(passed.streams)
    for job, point in zip(jobs, caught_up, strict=True):
        if point is not None:
            job.trail.state.rollback(point)
    joined = [mx.concatenate(tokens) if len(tokens) > 1 else tokens[0] for tokens in drafts if tokens]
    mx.eval(joined, [job.trail.state.arrays() for job in jobs])
    for job in jobs:
        job.trail.settle()
    ids = iter(cast("list[list[int]]", [tokens.tolist() for tokens in joined]))
    return [tuple(next(ids)) if tokens else () for tokens in drafts]
