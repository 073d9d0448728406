"""Log lines reach the file, stderr and the ring, and nothing else."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.events import (
    AnyNotice,
    EventRing,
    LogLine,
    ModelStateChanged,
    Outcome,
    PolicyChanged,
    PolicyProblem,
    Refused,
    StreamEnded,
)
from server.log import QUEUED_LINES, UnhurriedStreamHandler, escape_controls, log_to_file, log_to_stderr


@pytest.fixture(autouse=True)
def _put_logging_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    hooks = threading.excepthook, sys.unraisablehook
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising
    logging.captureWarnings(False)
    threading.excepthook, sys.unraisablehook = hooks


def lines_of(ring: EventRing) -> list[LogLine]:
    return [entry.notice for entry in ring.after(0) if isinstance(entry.notice, LogLine)]


def test_a_line_has_time_level_source_and_request(tmp_path: Path):
    ring = EventRing()
    setup = log_to_file(ring, 7, tmp_path)
    logging.getLogger("server.api.chat").warning("slow %s", "client", extra={"request_id": "chatcmpl-7"})
    setup.close()
    assert setup.path == tmp_path / "homebase-7.log"
    (line,) = (tmp_path / "homebase-7.log").read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING api \[chatcmpl-7\] slow client", line)
    (notice,) = lines_of(ring)
    assert (notice.level, notice.source, notice.message) == ("warning", "api", "slow client")
    assert notice.request_id == "chatcmpl-7"


def test_nothing_is_written_to_the_terminal_while_logging_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    ring = EventRing()
    setup = log_to_file(ring, 7, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("careful", stacklevel=1)
        thread = threading.Thread(target=lambda: 1 / 0, name="worker-3")
        thread.start()
        thread.join()
    logging.getLogger("server.x").error("broken %d", "not a number")
    setup.close()
    assert capfd.readouterr() == ("", "")
    text = (tmp_path / "homebase-7.log").read_text()
    assert "careful" in text
    assert "worker-3 ended by a fault: ZeroDivisionError" in text
    assert "Traceback" in text


def test_what_a_client_sent_cannot_steer_the_terminal_or_fake_a_line(tmp_path: Path):
    ring = EventRing()
    setup = log_to_file(ring, 7, tmp_path)
    logging.getLogger("server.x").warning("agent %s", "\x1b[2J\r\nroot\tlogged in")
    setup.close()
    assert lines_of(ring)[0].message == r"agent \x1b[2J\r\nroot\tlogged in"
    assert len((tmp_path / "homebase-7.log").read_text().splitlines()) == 1
    assert escape_controls("naïve 日本 ●") == "naïve 日本 ●"


def test_an_exception_is_one_sentence_in_the_ring_and_a_traceback_in_the_file(tmp_path: Path):
    ring = EventRing()
    setup = log_to_file(ring, 7, tmp_path)
    try:
        raise KeyError("lm_head.weight")
    except KeyError:
        logging.getLogger("server.engine.engine").exception("the model did not load")
    setup.close()
    (notice,) = lines_of(ring)
    assert notice.message == "the model did not load: KeyError: 'lm_head.weight'"
    assert "Traceback" in (tmp_path / "homebase-7.log").read_text()


def test_a_log_folder_that_cannot_be_made_is_told_in_the_ring(tmp_path: Path):
    (tmp_path / "file").write_text("")
    check_no_log_file(tmp_path / "file" / "deeper")


def check_no_log_file(folder: Path) -> None:
    ring = EventRing()
    setup = log_to_file(ring, 7, folder)
    setup.close()
    assert setup.path is None
    assert "no log file" in lines_of(ring)[0].message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_stops_neither_the_ring_nor_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "homebase-7.log").symlink_to("/dev/full")
    ring = EventRing()
    setup = log_to_file(ring, 7, tmp_path)
    logging.getLogger("server.api").warning("one line")
    setup.close()
    assert [line.message for line in lines_of(ring)] == ["one line"]
    assert capfd.readouterr() == ("", "")


def test_headless_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]):
    setup = log_to_stderr(EventRing())
    logging.getLogger("server.runtime").info("listening")
    logging.getLogger("httpx").info("chatter")
    setup.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("INFO    runtime listening\n")
    assert len(err.splitlines()) == 1


def end_stream(outcome: Outcome, detail: str, client: str = "opencode/1.18") -> StreamEnded:
    return StreamEnded(1.0, "req-1", outcome, detail, "s", "parent", client, 1200, 0, None, 6.04)


REFUSED = Refused(1.0, "req-2", "in_flight_full", "Refused.", 429, 12, 2, 2, "s", "parent", "opencode/1.18", 9, None)


@pytest.mark.parametrize(
    ("notice", "line"),
    [
        (
            end_stream("cancelled", "client closed the connection in prefill at 40 %"),
            "INFO    stream [req-1] opencode/1.18: cancelled (client closed the connection in prefill at 40 %) "
            "after 6.0 s, prompt 1,200, out 0 tokens",
        ),
        (
            end_stream("failed", "stalled", "evil\n\x1b[2J"),
            r"ERROR   stream [req-1] evil\n\x1b[2J: failed (stalled) after 6.0 s, prompt 1,200, out 0 tokens",
        ),
        (
            REFUSED,
            "WARNING refused [req-2] opencode/1.18 (parent): Refused. Sent 429 in_flight_full, retry after 12 s.",
        ),
        (
            PolicyChanged(1.0, "file", (("policy.max_in_flight", "2", "1"),)),
            "INFO    policy file edited: policy.max_in_flight 2 -> 1",
        ),
        (
            PolicyProblem(1.0, "homebase.toml:2: Bad."),
            "ERROR   policy homebase.toml:2: Bad. The policy before it stays in force.",
        ),
        (PolicyProblem(1.0, ""), "INFO    policy the file is valid again"),
    ],
)
def test_what_the_console_shows_is_one_short_line_without_it_and_stands_in_the_ring_once(
    notice: AnyNotice, line: str, capsys: pytest.CaptureFixture[str]
):
    ring = EventRing()
    setup = log_to_stderr(ring)
    ring.publish(notice)
    setup.close()
    ring.publish(notice)
    (written,) = capsys.readouterr().err.splitlines()
    assert written.endswith(line)
    assert [entry.notice for entry in ring.after(0)] == [notice, notice]


def test_what_is_logged_where_it_happens_is_not_logged_again(capsys: pytest.CaptureFixture[str]):
    ring = EventRing()
    setup = log_to_stderr(ring)
    ring.publish(ModelStateChanged(1.0, "ready", ""))
    logging.getLogger("server.core").info("serving")
    setup.close()
    assert len(capsys.readouterr().err.splitlines()) == 1


class StuckStream(io.StringIO):
    """A pipe that nobody reads, until `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, text: str, /) -> int:
        assert self.gate.wait(10)
        return super().write(text)


def test_a_stream_that_nobody_reads_blocks_no_logger_and_says_what_was_lost():
    stream = StuckStream()
    handler = UnhurriedStreamHandler(stream)
    for number in range(QUEUED_LINES + 50):
        handler.handle(logging.LogRecord("n", logging.INFO, "", 0, f"line {number}", None, None))
    stream.gate.set()
    while handler._lines.qsize() > QUEUED_LINES // 2:
        threading.Event().wait(0.001)
    handler.handle(logging.LogRecord("n", logging.INFO, "", 0, "after", None, None))
    handler.close()
    assert re.search(r"\(\d+ lines dropped: nobody read them\)\nafter\n$", stream.getvalue())
    assert "line 0\n" in stream.getvalue()


def test_a_traceback_cannot_steer_a_terminal_nor_fake_a_line_nor_quote_without_end(tmp_path: Path):
    ring = EventRing()
    setup = log_to_file(ring, 7, tmp_path)
    try:
        raise ValueError("\x1b]52;c;aGk=\x07\u202e\n2026-11-30 14:02:11.402 INFO    api all is well\n" + "x" * 100_000)
    except ValueError:
        logging.getLogger("server.api").exception("it broke: %s", "y" * 100_000)
    setup.close()
    text = (tmp_path / "homebase-7.log").read_text()
    assert text.replace("\n", "").isprintable()
    assert "ValueError: \\x1b]52;c;aGk=\\x07\\u202e" in text
    assert len([line for line in text.splitlines() if not line.startswith("    ")]) == 1
    assert len(text) < 10_000
    (notice,) = lines_of(ring)
    assert notice.message.isprintable()
    assert len(notice.message) <= 2000
