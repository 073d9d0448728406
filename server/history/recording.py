"""Hands what happens to the writer of the history: from the ring of notices to rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from server.errors import HistoryError
from server.events import AnyNotice, EventRing, PolicyChanged, Refused, StreamEnded
from server.history.file import find_file
from server.history.reader import HistoryReader
from server.history.records import ADMITTED, PolicyChangeRecord, Record, RequestRecord
from server.history.writer import HistoryWriter
from server.policy import HistoryPolicy

DETAIL_CHARS = 300
"""A longer sentence on how a stream ended is cut."""


class Recording:
    """Remembers every notice that is worth it, from `start` to `close`; nothing at all when the policy says so."""

    def __init__(self, ring: EventRing, read_policy: Callable[[], HistoryPolicy]) -> None:
        policy = read_policy()
        self._ring = ring
        self._path = None if policy.off else find_file(policy.path)
        self._writer = None if self._path is None else HistoryWriter(self._path, lambda: read_policy().keep_days)
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin; the file is opened, and made, on a thread."""
        if self._writer is not None:
            self._writer.start()
            self._unsubscribe = self._ring.subscribe(self._take)

    def close(self) -> None:
        """Write what is still to be written, within half a second."""
        self._unsubscribe()
        if self._writer is not None:
            self._writer.close()

    def read_since(self, since_s: float) -> list[RequestRecord]:
        """Requests that came after a moment (Unix time), the oldest first: of the file, and of the notices that are
        still known, which the file may not have yet. Reads a file: not for the server's loop.
        """
        records = (record for entry in self._ring.after(0) for record in build_records(entry.notice))
        known = [record for record in records if isinstance(record, RequestRecord) and record.arrived_s >= since_s]
        found = {(record.request_id, record.arrived_s): record for record in known}
        if self._path is not None:
            with contextlib.suppress(HistoryError, OSError), HistoryReader(self._path) as reader:
                found |= {(record.request_id, record.arrived_s): record for record in reader.read_requests(since_s)}
        return sorted(found.values(), key=lambda record: record.arrived_s)

    def _take(self, notice: AnyNotice) -> None:
        assert self._writer is not None
        for record in build_records(notice):
            self._writer.put(record)
        if isinstance(notice, PolicyChanged) and any(key == "history.keep_days" for key, _, _ in notice.changes):
            self._writer.prune_soon()


def build_records(notice: AnyNotice) -> tuple[Record, ...]:
    """The rows that a notice makes."""
    match notice:
        case StreamEnded():
            return (_build_ended(notice),)
        case Refused():
            return (_build_refused(notice),)
        case PolicyChanged():
            return tuple(
                PolicyChangeRecord(
                    time_s=notice.time_s,
                    limit_key=key,
                    old_value=old,
                    new_value=new,
                    origin=notice.origin,
                    by=notice.by,
                )
                for key, old, new in notice.changes
            )
        case _:
            return ()


def _build_ended(ended: StreamEnded) -> RequestRecord:
    return RequestRecord(
        arrived_s=ended.arrived_s or ended.time_s - ended.age_s,
        request_id=ended.request_id,
        session=ended.session,
        parent_session=ended.parent_session,
        lane=ended.lane,
        depth=ended.depth,
        client=ended.client,
        key=ended.key,
        model=ended.model,
        upstream=ended.upstream,
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        completion_tokens=ended.completion_tokens,
        max_tokens=ended.max_tokens,
        decision=ADMITTED,
        waited_s=ended.waited_s,
        ttft_s=ended.ttft_s,
        prefill_tps=ended.prefill_tps,
        decode_tps=ended.decode_tps,
        drafted_tokens=ended.drafted_tokens,
        accepted_tokens=ended.accepted_tokens,
        outcome=ended.outcome,
        detail=ended.detail[:DETAIL_CHARS],
        duration_s=ended.age_s,
    )


def _build_refused(refused: Refused) -> RequestRecord:
    return RequestRecord(
        arrived_s=refused.arrived_s or refused.time_s,
        request_id=refused.request_id,
        session=refused.session,
        parent_session=refused.parent_session,
        lane=refused.lane,
        depth=refused.depth,
        client=refused.client,
        key=refused.key,
        model=refused.model,
        prompt_tokens=refused.prompt_tokens,
        max_tokens=refused.max_tokens,
        decision=refused.code,
        limit_key=refused.limit_key,
        limit_value=refused.limit,
        used_value=refused.used,
        status=refused.status,
        retry_after_s=refused.retry_after_s,
        waited_s=refused.waited_s,
    )
