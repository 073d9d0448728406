"""From notices to rows: which of them are remembered, with what, and for how long somebody listens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from server.events import EventRing, LogLine, PolicyChanged, Refused, StreamEnded
from server.history.reader import HistoryReader
from server.history.recording import Recording, build_records
from server.history.records import PolicyChangeRecord, RequestRecord
from server.policy import HistoryPolicy

if TYPE_CHECKING:
    from tests.history.conftest import ReadIds, WaitUntil


SECRET = "the words of a prompt"

ENDED = StreamEnded(
    time_s=2000.0,
    request_id="req-1",
    outcome="stop",
    detail="",
    session="s",
    lane="child",
    client="c",
    prompt_tokens=10,
    completion_tokens=5,
    ttft_s=0.5,
    age_s=3.0,
    arrived_s=1996.0,
    parent_session="p",
    depth=1,
    key="k",
    model="m",
    upstream="u",
    cached_tokens=4,
    max_tokens=50,
    waited_s=1.0,
    prefill_tps=100.0,
    decode_tps=20.0,
    drafted_tokens=8,
    accepted_tokens=6,
)
REFUSED = Refused(
    time_s=2001.0,
    request_id="req-2",
    code="in_flight_full",
    message=SECRET,
    status=429,
    retry_after_s=12,
    limit=2,
    used=2,
    session="s",
    lane="parent",
    client="c",
    prompt_tokens=None,
    max_tokens=None,
    arrived_s=2000.5,
    model="m",
    key="k",
    waited_s=0.5,
)
CHANGED = PolicyChanged(3.0, "undo", (("a.b", "1", "2"), ("history.keep_days", "30", "1")))


def test_an_ended_stream_is_a_row_with_all_its_figures() -> None:
    assert build_records(ENDED) == (
        RequestRecord(
            arrived_s=1996.0,
            request_id="req-1",
            session="s",
            parent_session="p",
            lane="child",
            depth=1,
            client="c",
            key="k",
            model="m",
            upstream="u",
            prompt_tokens=10,
            cached_tokens=4,
            completion_tokens=5,
            max_tokens=50,
            decision="admitted",
            waited_s=1.0,
            ttft_s=0.5,
            prefill_tps=100.0,
            decode_tps=20.0,
            drafted_tokens=8,
            accepted_tokens=6,
            outcome="stop",
            duration_s=3.0,
        ),
    )


def test_a_refusal_is_a_row_with_the_limit_and_without_its_sentence() -> None:
    (row,) = build_records(REFUSED)
    assert isinstance(row, RequestRecord)
    assert (row.decision, row.limit_value, row.used_value, row.status, row.retry_after_s) == (
        "in_flight_full",
        2,
        2,
        429,
        12,
    )
    assert (row.arrived_s, row.outcome, row.prompt_tokens, row.waited_s) == (2000.5, None, None, 0.5)
    assert not row.was_admitted
    assert SECRET not in repr(row)


def test_each_changed_limit_is_a_row_of_its_own() -> None:
    assert build_records(CHANGED) == (
        PolicyChangeRecord(time_s=3.0, limit_key="a.b", old_value="1", new_value="2", origin="undo"),
        PolicyChangeRecord(time_s=3.0, limit_key="history.keep_days", old_value="30", new_value="1", origin="undo"),
    )


def test_other_notices_are_not_remembered() -> None:
    assert build_records(LogLine(1.0, "info", "api", SECRET)) == ()


def test_the_ring_is_listened_to_from_start_to_close(read_ids: ReadIds, tmp_path: Path) -> None:
    path, ring, now_s = tmp_path / "h.sqlite3", EventRing(), time.time()
    recording = Recording(ring, lambda: HistoryPolicy(path=str(path)))
    ring.publish(msgspec.structs.replace(REFUSED, arrived_s=now_s))
    recording.start()
    ring.publish(msgspec.structs.replace(ENDED, arrived_s=now_s))
    recording.close()
    ring.publish(msgspec.structs.replace(REFUSED, arrived_s=now_s))
    assert read_ids(path) == ["req-1"]


def test_off_makes_no_file(tmp_path: Path) -> None:
    path, ring = tmp_path / "h.sqlite3", EventRing()
    recording = Recording(ring, lambda: HistoryPolicy(path=str(path), off=True))
    recording.start()
    ring.publish(ENDED)
    recording.close()
    assert not path.exists()


def test_fewer_days_are_felt_at_once(read_ids: ReadIds, wait_until: WaitUntil, tmp_path: Path) -> None:
    path, ring, now_s = tmp_path / "h.sqlite3", EventRing(), time.time()
    policy = [HistoryPolicy(path=str(path), keep_days=30)]
    recording = Recording(ring, lambda: policy[0])
    recording.start()
    ring.publish(msgspec.structs.replace(ENDED, arrived_s=now_s - 2 * 86_400))
    wait_until("it is written", lambda: read_ids(path))
    policy[0] = HistoryPolicy(path=str(path), keep_days=1)
    ring.publish(PolicyChanged(now_s, "console", (("history.keep_days", "30", "1"),)))
    wait_until("it is gone", lambda: read_ids(path) == [])
    recording.close()
    with HistoryReader(path) as reader:
        assert [change.new_value for change in reader.read_policy_changes(0.0)] == ["1"]


def test_what_the_file_does_not_have_yet_is_read_of_the_notices(tmp_path: Path) -> None:
    path, ring, now_s = tmp_path / "h.sqlite3", EventRing(), time.time()
    recording = Recording(ring, lambda: HistoryPolicy(path=str(path)))
    recording.start()
    ring.publish(msgspec.structs.replace(ENDED, arrived_s=now_s - 10))
    recording.close()
    ring.publish(msgspec.structs.replace(REFUSED, arrived_s=now_s - 5))
    ring.publish(msgspec.structs.replace(REFUSED, arrived_s=now_s - 4000))
    assert [record.arrived_s for record in recording.read_since(now_s - 3600)] == [now_s - 10, now_s - 5]
