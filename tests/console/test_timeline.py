"""Notices in words, and the bounded, filtered timeline of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.timeline import LEVELS, Timeline, build_entry
from server.events import (
    AnyNotice,
    EventRing,
    LogLine,
    ModelStateChanged,
    NumberedNotice,
    PolicyChanged,
    PolicyProblem,
    StreamEnded,
)
from server.log import log_to_stderr


def number(notices: Iterable[AnyNotice], after: int = 0) -> list[NumberedNotice]:
    return [NumberedNotice(after + i, notice) for i, notice in enumerate(notices, 1)]


def line(message: str, level: Any = "info", request_id: str | None = None) -> LogLine:
    return LogLine(time_s=1.0, level=level, source="api", message=message, request_id=request_id)


def ended(**fields: Any) -> StreamEnded:
    known: dict[str, Any] = {
        "time_s": 1.0,
        "request_id": "r-9",
        "outcome": "stop",
        "detail": "",
        "session": "ses-1",
        "lane": "parent",
        "client": "opencode",
        "prompt_tokens": 1830,
        "completion_tokens": 245,
        "ttft_s": 0.42,
        "age_s": 12.2,
    }
    return StreamEnded(**(known | fields))


def check_words(notice: AnyNotice, level: str, source: str, text: str) -> None:
    entry = build_entry(NumberedNotice(1, notice))
    assert (entry.level, entry.source, entry.text) == (level, source, text)


def test_log_lines_keep_their_words_and_name_their_request() -> None:
    check_words(line("ready"), "info", "api", "ready")
    check_words(line("slow", "warning", "r-7"), "warning", "api", "r-7: slow")
    check_words(line("r-7 is slow", "error", "r-7"), "error", "api", "r-7 is slow")


def test_a_refusal_tells_who_why_and_what_was_sent(samples: Any) -> None:
    check_words(
        samples.refused(),
        "warning",
        "refused",
        "r-77 openai-python: 2 of 2 completions are in flight (max_in_flight = 2); a slot is expected in about 12 s. "
        "Sent 429 in_flight_full, retry after 12 s.",
    )


def test_an_ended_stream_tells_its_outcome_and_numbers() -> None:
    check_words(ended(), "info", "stream", "r-9 opencode: stop after 12.2 s, prompt 1,830, out 245 tokens, TTFT 0.42 s")
    check_words(
        ended(
            outcome="cancelled",
            detail="client closed the connection in prefill at 40 %",
            ttft_s=None,
            completion_tokens=1,
        ),
        "info",
        "stream",
        "r-9 opencode: cancelled (client closed the connection in prefill at 40 %) after 12.2 s, prompt 1,830, "
        "out 1 token",
    )
    assert build_entry(NumberedNotice(1, ended(outcome="failed"))).level == "error"


def test_an_ended_stream_tells_what_was_reused_and_where_its_prompt_parted() -> None:
    reuse = "1,200 of 1,830 tokens: it parts from what is cached at token 1,210"
    entry = build_entry(NumberedNotice(1, ended(reuse=reuse)))
    assert entry.text.endswith(f"TTFT 0.42 s; reused {reuse}")


def test_a_headless_server_writes_the_same_words(samples: Any, capsys: pytest.CaptureFixture[str]) -> None:
    notices = (
        samples.refused(),
        ended(reuse="nothing: nothing cached begins like this prompt"),
        PolicyChanged(1.0, "file", (("policy.max_in_flight", "2", "1"),)),
        PolicyProblem(1.0, "homebase.toml:3: no."),
    )
    ring = EventRing()
    setup = log_to_stderr(ring)
    for notice in notices:
        ring.publish(notice)
    setup.close()
    written = capsys.readouterr().err.splitlines()
    for line, entry in zip(written, map(build_entry, number(notices)), strict=True):
        assert line.split()[2:4] == [entry.level.upper(), entry.source]
        request_id = getattr(notices[entry.sequence - 1], "request_id", None)
        tag = "" if request_id is None else f"[{request_id}] "
        assert line.endswith(f" {tag}{entry.text.removeprefix(f'{request_id} ')}")


def test_policy_and_model_are_told() -> None:
    changes = (("policy.max_in_flight", "2", "1"),)
    check_words(
        PolicyChanged(1.0, "console", changes), "info", "policy", "saved in a console: policy.max_in_flight 2 -> 1"
    )
    check_words(PolicyProblem(1.0, ""), "info", "policy", "the file is valid again")
    check_words(
        PolicyProblem(1.0, "homebase.toml:3: no."),
        "error",
        "policy",
        "homebase.toml:3: no. The policy before it stays in force.",
    )
    check_words(
        PolicyChanged(1.0, "api", changes, "alice"),
        "info",
        "policy",
        "saved over HTTP by alice: policy.max_in_flight 2 -> 1",
    )
    check_words(ModelStateChanged(1.0, "ready", "nano"), "info", "model", "ready: nano")
    check_words(ModelStateChanged(1.0, "failed", "no weights"), "error", "model", "failed: no weights")


def test_control_characters_are_escaped() -> None:
    entry = build_entry(NumberedNotice(1, line("a\x1b[2Jb\r\nc\u202ed")))
    assert entry.text == "a\\x1b[2Jb\\r\\nc\\u202ed"


def test_debug_is_hidden_until_asked_for() -> None:
    timeline = Timeline()
    timeline.add(number([line("x", level) for level in LEVELS]))
    assert [entry.level for entry in timeline.shown] == ["info", "warning", "error"]
    timeline.set_filter(level="debug")
    assert len(timeline.shown) == 4
    timeline.set_filter(level="error")
    assert [entry.level for entry in timeline.shown] == ["error"]


def test_the_text_filter_looks_at_level_source_and_text_whatever_the_case() -> None:
    timeline = Timeline()
    timeline.add(number([line("Listening"), line("slow", "warning"), ended()]))
    for needle, count in (("LISTEN", 1), ("warn", 1), ("stream", 1), ("api", 2), ("nowhere", 0), ("", 3)):
        timeline.set_filter(needle=needle)
        assert len(timeline.shown) == count, needle


def test_the_filter_applies_to_what_comes_later() -> None:
    timeline = Timeline()
    timeline.set_filter(needle="slow")
    timeline.add(number([line("fast"), line("slow")]))
    assert [entry.text for entry in timeline.shown] == ["slow"]


@given(st.lists(st.tuples(st.sampled_from(LEVELS), st.sampled_from(["kept", "left"])), max_size=60), st.integers(1, 20))
def test_memory_is_bounded_and_the_newest_stay(lines: list[tuple[str, str]], kept: int) -> None:
    timeline = Timeline(kept=kept)
    timeline.set_filter(needle="kept")
    for i, (level, text) in enumerate(lines, 1):
        before = len(timeline.shown)
        fell = timeline.add([NumberedNotice(i, line(text, level))])
        assert len(timeline.shown) - before + fell in (0, 1)
    assert timeline.total == min(len(lines), kept)
    newest = [(level, i) for i, (level, text) in enumerate(lines, 1) if text == "kept" and i > len(lines) - kept]
    assert [entry.sequence for entry in timeline.shown] == [i for level, i in newest if level != "debug"]
    assert timeline.seen_sequence == len(lines)


def test_ten_thousand_lines_are_taken_in_without_keeping_them() -> None:
    timeline = Timeline()
    timeline.add(number(line(f"line {i}") for i in range(10_000)))
    assert timeline.total == len(timeline.shown) == 3000
    assert timeline.shown[-1].text == "line 9999"


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_has_a_place_in_the_order(level: Any) -> None:
    timeline = Timeline()
    timeline.set_filter(level=level)
    timeline.add(number([line("x", level)]))
    assert len(timeline.shown) == 1
