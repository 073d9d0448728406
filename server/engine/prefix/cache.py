"""The prefix cache as the engine uses it. Engine thread only.

A fault in here never costs a stream its work: the sequence runs cold, the cache begins anew, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx
from msgspec.structs import replace

from server.engine.drafting import DraftTrail
from server.engine.prefix.budget import make_room, measure
from server.engine.prefix.disk import DiskTier
from server.engine.prefix.payload import Point, SpanRows, as_storable, build, export_point, export_rows
from server.engine.prefix.points import find_spacing, plan_points
from server.engine.prefix.restored import NOTHING_KEPT, Restored, explain
from server.engine.prefix.store import open_tier
from server.engine.prefix.tree import Match, Node, PrefixTree, pack_tokens
from server.models.cache import FixedPart, SequenceState, ServedModel, StorableState
from server.policy import EnginePolicy

LEAST_RESTORED_TOKENS = 32
"""Fewer are computed as fast as they are put together: every chat begins with the same few."""

GIB = 2**30

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class PrefixCache:
    """Holds what sequences have computed, by their tokens, in memory and, if the policy says so, on disk."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._trees = {True: PrefixTree(), False: PrefixTree()}
        """By whether the sequences drafted: what has no rows of the head is of no use to one that wants to."""
        self._pins: dict[str, Node] = {}
        """The end of each running sequence's path."""
        self._budget_bytes = 0
        self._disk: DiskTier | None = None
        self._disk_gib = 0.0
        self._spacing = find_spacing(0, 0)
        self._clock = 0
        self._can_store: bool | None = None
        """Whether the model's states can be taken apart; None before one was looked at."""

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return measure(tuple(self._trees.values()))

    @property
    def changes(self) -> tuple[int, int]:
        """Another one whenever something was put in, used or let go of, in memory or on disk."""
        return self._clock, self.disk_bytes

    @property
    def budget_bytes(self) -> int:
        """Bytes that may be held."""
        return self._budget_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of this model's files on disk."""
        return self._disk.nbytes if self._disk else 0

    def follow(self, policy: EnginePolicy, default_bytes: int, most_bytes: int | None = None) -> None:
        """The policy of now: what it may take, or `default_bytes` when that is left open, and at most `most_bytes`."""
        if self._can_store is None:
            self._can_store = self._attempt("its states were looked at", self._check_states, None)
        if not self._can_store:
            return
        gib = policy.prefix_cache_gib
        budget = default_bytes if gib < 0 else int(gib * GIB)
        budget = budget if most_bytes is None else min(budget, most_bytes)
        if budget != self._budget_bytes:
            self._clock += 1
            self._budget_bytes = budget
            self.give_way(self.nbytes - budget)
            if self.nbytes > budget:  # the paths of running streams, which have copies of their own
                self._begin_anew()
        if policy.prefix_cache_disk_gib != self._disk_gib:
            self._disk_gib = policy.prefix_cache_disk_gib
            self._attempt("its disk tier was opened", self._open_disk, None)

    def give_way(self, wanted_bytes: int) -> int:
        """Let go of memory for something more important; the bytes that came free. What runs keeps its path."""
        before = self.nbytes
        if wanted_bytes > 0:
            self._clock += 1
            make_room(self._all, max(0, before - wanted_bytes), 0)
        return before - self.nbytes

    def begin(
        self, request_id: str, prompt_ids: Sequence[int], boundaries: Sequence[int], drafts: bool
    ) -> Restored | None:
        """What there is for a prompt. None: ask again in the next step, for it is being read from disk piece by piece.

        The result's state belongs to the caller. `drafts` says that the head's rows are wanted too.
        """
        if not self._budget_bytes:
            return NOTHING_KEPT
        points = plan_points(len(prompt_ids), 0, 0, boundaries, self._spacing)
        failed = replace(NOTHING_KEPT, points=points, why="nothing: the prefix cache failed")
        found = self._attempt(
            "a prompt was looked up", lambda: self._begin(request_id, prompt_ids, boundaries, drafts), failed
        )
        if found is failed and self._disk is not None:
            self._disk.drop_line(pack_tokens(prompt_ids))
        return found

    def take(self, request_id: str, token_ids: Sequence[int], state: SequenceState, trail: DraftTrail | None) -> None:
        """Keep what a running sequence has computed, with a point where it stands; `token_ids` are in its state."""
        if self._budget_bytes and token_ids:
            self._attempt("a point was taken", lambda: self._take(request_id, token_ids, state, trail), None)

    def finish(self, request_id: str) -> None:
        """A sequence is over; what it left may be evicted from now on, and goes to disk."""
        node = self._pins.pop(request_id, None)
        if node is not None:
            node.pins -= 1
            if self._disk is not None and node.parent is not None:
                self._attempt("it was written to disk", lambda: self._save(node), None)

    def close(self, timeout_s: float) -> None:
        """Wait until what is on its way to the disk is there, at most so long."""
        if self._disk is not None:
            self._disk.close(timeout_s)
            self._disk = None

    def _check_states(self) -> bool:
        head = self._model.mtp
        states = (self._model.build_state(), *(() if head is None else (head.build_state(),)))
        return all(isinstance(state, StorableState) for state in states)

    @property
    def _all(self) -> tuple[PrefixTree, ...]:
        return tuple(self._trees.values())

    def _attempt(self, what: str, act: Callable[[], ResultT], otherwise: ResultT) -> ResultT:
        """The cache's edge: whatever goes wrong behind it, streams run on without it."""
        try:
            return act()
        except Exception:
            log.exception("the prefix cache failed when %s; it begins anew, and no stream is the worse for it", what)
            self._begin_anew()
            return otherwise

    def _begin_anew(self) -> None:
        for tree in self._all:
            tree.clear()
        self._pins.clear()

    def _begin(
        self, request_id: str, prompt_ids: Sequence[int], boundaries: Sequence[int], drafts: bool
    ) -> Restored | None:
        tokens, limit = pack_tokens(prompt_ids), len(prompt_ids) - 1
        kinds = (True,) if drafts else (False, True)
        if any(self._read_ahead(request_id, kind, tokens, limit) for kind in kinds):
            return None
        matches = [(self._trees[kind].find(tokens, limit), self._trees[kind]) for kind in kinds]
        match, tree = max(matches, key=lambda each: _usable(*each, limit))
        usable = _usable(match, tree, limit)
        state = trail = None
        if usable >= LEAST_RESTORED_TOKENS:
            state, trail = self._restore(request_id, match, tree, prompt_ids, usable, drafts)
        else:
            usable = 0
        points = (
            ()
            if tree.keeps_bare_rows
            else plan_points(len(prompt_ids), usable, match.common, boundaries, self._spacing)
        )
        diverged = match.common if match.common < len(prompt_ids) else None
        return Restored(state, trail, usable, points, diverged, explain(len(prompt_ids), usable, diverged))

    def _restore(
        self, request_id: str, match: Match, tree: PrefixTree, prompt_ids: Sequence[int], usable: int, drafts: bool
    ) -> tuple[SequenceState, DraftTrail | None]:
        path = [node for node in match.path if node.start < usable]
        last = path[-1]
        point = last.point if last.end == usable and last.point else Point(FixedPart(usable, {}, {}), None)
        assert isinstance(point, Point)
        spans = [node.rows.part(node.start, min(node.end, usable)) for node in path if isinstance(node.rows, SpanRows)]
        built = build(self._model, spans, point if drafts else replace(point, stream=None), prompt_ids[usable])
        self._clock += 1
        tree.touch(last, self._clock)
        self._pin(request_id, last)
        return built

    def _take(self, request_id: str, token_ids: Sequence[int], state: SequenceState, trail: DraftTrail | None) -> None:
        storable, tokens = as_storable(state), pack_tokens(token_ids)
        assert state.offset == len(token_ids), "the tokens that are in the state"
        assert trail is None or trail.rows == state.offset, "the head stands where the model stands"
        tree = self._trees[trail is not None]
        match = tree.find(tokens)
        if match.point is None or match.point.end < len(token_ids):
            if trail is not None and self._model.mtp is not None:
                trail.read_up(self._model.mtp)
            point = export_point(storable, trail)
            rows = export_rows(storable, trail, match.common, state.offset)
            if not self._make_room(request_id, match, rows.nbytes + point.nbytes):
                return
            mx.eval(rows.model, rows.head, point.arrays)
            self._learn(tree, rows, point)
            node = tree.insert(tokens, point, lambda first, end: _same(rows, first, end))
        else:
            node = match.point
        self._clock += 1
        tree.touch(node, self._clock)
        self._pin(request_id, node)

    def _make_room(self, request_id: str, match: Match, wanted_bytes: int) -> bool:
        with_path = match.path[-1:]
        for node in with_path:
            node.pins += 1
        fits = make_room(self._all, self._budget_bytes, wanted_bytes)
        for node in with_path:
            node.pins -= 1
        if not fits:
            log.debug("no room for %d bytes of sequence %s in the prefix cache", wanted_bytes, request_id)
        return fits

    def _learn(self, tree: PrefixTree, rows: SpanRows, point: Point) -> None:
        """What points and rows of this model weigh."""
        tree.keeps_bare_rows = point.fixed.fits_anywhere and point.stream is None
        if rows.end > rows.first:
            self._spacing = find_spacing(point.nbytes, rows.nbytes / (rows.end - rows.first))

    def _pin(self, request_id: str, node: Node) -> None:
        before = self._pins.get(request_id)
        if before is not None:
            before.pins -= 1
        node.pins += 1
        self._pins[request_id] = node

    def _open_disk(self) -> None:
        limit_bytes = int(self._disk_gib * GIB)
        if not limit_bytes:
            self.close(0)
            return
        if self._disk is not None:
            self._disk.limit(limit_bytes)
            return
        try:
            self._disk = open_tier(self._model.facts, limit_bytes)
        except OSError as fault:
            log.warning(
                "engine.prefix_cache_disk_gib is set, but its folder cannot be used: %s. The prefix cache stays in "
                "memory; setting the limit again tries again.", fault,
            )  # fmt: skip

    def _read_ahead(self, request_id: str, drafted: bool, tokens: bytes, limit: int) -> bool:
        """Put the next piece that only the disk has into memory; False when there is none."""
        if self._disk is None:
            return False
        tree = self._trees[drafted]
        match = tree.find(tokens, limit)
        piece = self._disk.read_next(tokens, limit, drafted, match.common, match.point.end if match.point else 0)
        if piece is None or not self._make_room(request_id, match, piece.nbytes):
            return False
        rows, point = piece.rows, piece.point
        node = tree.insert(tokens[: rows.end * 4], point, lambda first, end: rows.part(first, end))
        if point is not None:
            self._learn(tree, rows, point)
        self._clock += 1
        tree.touch(node, self._clock)
        self._pin(request_id, node)
        return True

    def _save(self, node: Node) -> None:
        assert self._disk is not None
        drafted = any(node is each for each in self._trees[True].nodes())
        self._disk.save(node.line, drafted)


def _usable(match: Match, tree: PrefixTree, limit: int) -> int:
    """How many tokens a state can be built of."""
    if tree.keeps_bare_rows:
        return min(match.common, limit)
    return match.point.end if match.point else 0


def _same(rows: SpanRows, first: int, end: int) -> SpanRows:
    assert (rows.first, rows.end) == (first, end), "the rows that are missing"
    return rows
