"""The table of requests at every width: what fits is shown, and nothing foreign moves a cursor."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from console.history_table import (
    REFUSAL_COLUMNS,
    REQUEST_COLUMNS,
    build_table,
    choose_columns,
    describe_whole,
    find_p95,
)
from server.history.records import RequestRecord

NOW_S = 1_790_000_000.0


def build_request(**changes: Any) -> RequestRecord:
    plain: dict[str, Any] = {
        "arrived_s": NOW_S,
        "request_id": "req-1",
        "session": "a-session",
        "lane": "parent",
        "client": "opencode/1.18",
        "model": "nano",
        "prompt_tokens": 12_345,
        "cached_tokens": 6_000,
        "completion_tokens": 321,
        "decision": "admitted",
        "outcome": "stop",
        "ttft_s": 0.42,
        "decode_tps": 31.25,
        "duration_s": 10.0,
        "drafted_tokens": 100,
        "accepted_tokens": 60,
    }
    return RequestRecord(**(plain | changes))


REFUSED = build_request(
    decision="in_flight_full",
    outcome=None,
    limit_value=2,
    used_value=2,
    retry_after_s=12,
    ttft_s=None,
    decode_tps=None,
    completion_tokens=0,
    cached_tokens=0,
    drafted_tokens=0,
)


def draw(requests: list[RequestRecord], width: int, *, refused_only: bool = False, ago_s: float = 0.0) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(build_table(requests, width, NOW_S + ago_s, refused_only=refused_only))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 160, 240])
@pytest.mark.parametrize("refused_only", [False, True])
def test_every_request_is_one_line_that_fits(width: int, refused_only: bool) -> None:
    odd = build_request(client="a client with a long name 名前名前", session="s" * 80, detail="d" * 200)
    lines = draw([odd, REFUSED], width, refused_only=refused_only)
    assert len(lines) == 3
    assert all(cell_len(line) <= width for line in lines)


def test_eighty_columns_have_what_tells_most() -> None:
    head, row, refused = draw([build_request(), REFUSED], 80)
    for title in ("time", "client", "lane", "prompt", "out", "TTFT", "tok/s", "end"):
        assert title in head.split(), head
    assert "opencode/1.18" in row
    assert "12,345" in row
    assert "321" in row
    assert "stop" in row
    assert "31.2" in row
    assert "in_flight_full" in refused


def test_the_date_stands_where_the_time_of_day_does_not_tell_enough() -> None:
    day = time.strftime("%m-%d", time.localtime(NOW_S))
    assert not draw([build_request()], 80)[1].startswith(day)
    assert draw([build_request()], 80, ago_s=86_400)[1].startswith(f"{day} ")
    assert draw([build_request(), build_request(arrived_s=NOW_S + 86_400)], 80)[1].startswith(f"{day} ")


def test_a_wide_terminal_has_all_of_it() -> None:
    head, row = draw([build_request(waited_s=2.5, prefill_tps=900.0, key="alice")], 240)
    assert all(column.title in head for column in REQUEST_COLUMNS)
    for part in ("a-session", "alice", "nano", "6,000", "2.5 s", "900", "0.42 s", "31.2", "60 %", "10 s"):
        assert part in row


def test_refusals_say_which_limit_and_when_to_come_again() -> None:
    memory = build_request(decision="memory_budget_full", outcome=None, limit_value=8 * 2**30, used_value=6 * 2**30)
    head, full, wide = draw([REFUSED, memory], 200, refused_only=True)
    assert all(column.title in head for column in REFUSAL_COLUMNS)
    for part in ("2 of 2", "12 s", "in_flight_full"):
        assert part in full
    assert "6.0 GiB of 8.0 GiB" in wide


def test_no_row_shorter_of_room_loses_its_last_column() -> None:
    for width in range(20, 200):
        chosen = choose_columns(REQUEST_COLUMNS, width)
        assert chosen[-1].title == "end"
        assert [each for each in REQUEST_COLUMNS if each in chosen] == chosen
    assert choose_columns(REQUEST_COLUMNS, 300) == list(REQUEST_COLUMNS)


def test_what_a_client_called_itself_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J\x9b31m\u202e\n[bold]x[/bold]"
    lines = draw([build_request(client=evil, session=evil, detail=evil, key=evil, model=evil)], 240)
    assert len(lines) == 2
    for sign in ("\x1b", "\x9b", "\u202e"):
        assert sign not in lines[1]
    assert "\\x1b[2J" in lines[1]


def test_the_whole_in_a_sentence() -> None:
    requests = [build_request(ttft_s=float(n)) for n in range(1, 21)] + [REFUSED, REFUSED]
    told = describe_whole(requests)
    assert told.startswith(
        "22 requests; 2 refused (in_flight_full 2); prompt 246,900 tokens, 49 % of them cached; out 6,420"
    )
    assert told.endswith("TTFT 10 s (median), 19 s (p95)")
    assert describe_whole([REFUSED]) == "1 request; 1 refused (in_flight_full 1)"


@pytest.mark.parametrize(("count", "p95"), [(1, 1), (2, 2), (20, 19), (21, 20), (100, 95)])
def test_p95_is_a_value_that_was_measured(count: int, p95: int) -> None:
    assert find_p95([float(n) for n in range(count, 0, -1)]) == p95
