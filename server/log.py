"""Where log lines go: a file and the console's ring while a full screen is up, stderr and the ring without one.

While the TUI runs, nothing may write to stdout or stderr: a single line there spoils the screen. So this takes the
root logger, warnings, and what escapes from threads, and gives every line a time, a source and its request's id.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import queue
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

import platformdirs

from server.events import AnyNotice, EventRing, LogLine, ModelStateChanged
from server.notices import Level, describe_notice

FILE_BYTES = 1_000_000
"""A log file is turned over at this size; one older one is kept."""

LINE_CHARS = 2000
"""A longer line, or line of a traceback, is cut: an error may quote what a client sent."""

QUEUED_LINES = 1000
"""Lines that may wait for a reader of stderr."""

QUIET = ("asyncio", "hypercorn", "httpcore", "httpx", "quart", "watchfiles", "transformers", "huggingface_hub")
"""Libraries that are heard from WARNING up only."""

log = logging.getLogger("homebase")


class _LineFormatter(logging.Formatter):
    """`2026-11-30 14:02:11.402 INFO  api [chatcmpl-7] text`, with control characters made visible."""

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self.formatTime(record)} {record.levelname:<7} {short_source(record.name)}{_tag(record)} "
        text += escape_controls(record.getMessage()[:LINE_CHARS])
        if record.exc_info:
            # An error's words may hold line ends too; an indented line is none of ours.
            trace = self.formatException(record.exc_info).split("\n")
            text += "".join(f"\n    {escape_controls(line[:LINE_CHARS])}" for line in trace)
        return text


class RingHandler(logging.Handler):
    """Publishes log lines as notices, so that the console's log screen shows them. Tracebacks stay in the file."""

    def __init__(self, ring: EventRing) -> None:
        super().__init__(logging.INFO)
        self._ring = ring

    def emit(self, record: logging.LogRecord) -> None:
        """Publish one line; never raises into the code that logged it."""
        if getattr(record, "is_notice", False):
            return  # it came from the ring
        try:
            self._ring.publish(
                LogLine(
                    time_s=record.created,
                    level=_level(record.levelno),
                    source=short_source(record.name),
                    message=_message(record),
                    request_id=getattr(record, "request_id", None),
                )
            )
        except Exception:
            self.handleError(record)


class UnhurriedStreamHandler(logging.Handler):
    """Writes lines to a stream from a thread of its own, so that a pipe or terminal that nobody reads slows nobody.

    At most `QUEUED_LINES` wait; further ones are dropped, and counted in the next line that gets through.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(QUEUED_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_lines, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line."""
        try:
            line = self.format(record)
            if self._dropped:
                line = f"({self._dropped} lines dropped: nobody read them)\n{line}"
            self._lines.put_nowait(line)
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what waits, but for no longer than a second."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
            self._thread.join(1.0)
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line + "\n")
                self._stream.flush()


class LogSetup:
    """What was put in place, to be taken away again by `close`."""

    def __init__(self, ring: EventRing, handlers: list[logging.Handler], path: Path | None) -> None:
        self._handlers = handlers
        self._unsubscribe = ring.subscribe(log_notice)
        self.path = path
        """The log file, None when there is none (headless, or its folder cannot be written)."""

    def close(self) -> None:
        """Flush and detach everything; later lines are dropped rather than printed."""
        self._unsubscribe()
        root = logging.getLogger()
        root.addHandler(logging.NullHandler())
        for handler in self._handlers:
            root.removeHandler(handler)
            with contextlib.suppress(OSError):  # what is left of a full disk's file cannot be written at the end either
                handler.close()


def log_to_file(ring: EventRing, port: int, folder: Path | None = None) -> LogSetup:
    """Log into `homebase-<port>.log` in the platform's log folder and into the ring; nothing to the terminal.

    One file per port, because two programs cannot turn over the same file. When it cannot be written the ring
    carries on alone and says so.
    """
    path = (folder or default_log_folder()) / f"homebase-{port}.log"
    handlers: list[logging.Handler] = [RingHandler(ring)]
    problem: OSError | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(
            logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=1, encoding="utf-8")
        )
    except OSError as error:
        problem = error
    # A handler that fails prints a traceback to stderr unless this is off.
    logging.raiseExceptions = False
    _install(handlers)
    if problem:
        log.warning("no log file: %s cannot be written (%s)", path, problem.strerror or problem)
    return LogSetup(ring, handlers, None if problem else path)


def log_to_stderr(ring: EventRing) -> LogSetup:
    """Log to stderr and into the ring: a server without a screen."""
    handlers: list[logging.Handler] = [RingHandler(ring), UnhurriedStreamHandler(sys.stderr)]
    _install(handlers)
    return LogSetup(ring, handlers, None)


def log_notice(notice: AnyNotice) -> None:
    """One line for what the console shows and nobody else logs: ended streams, refusals, and the policy file."""
    if isinstance(notice, LogLine | ModelStateChanged):
        return
    level, source, text = describe_notice(notice)
    extra = {"is_notice": True, "request_id": getattr(notice, "request_id", None)}
    logging.getLogger(f"homebase.{source}").log(_LEVELS[level], "%s", text, extra=extra)


_LEVELS: dict[Level, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def default_log_folder() -> Path:
    """The platform's folder for a user's logs."""
    return platformdirs.user_log_path("homebase-console", appauthor=False)


def short_source(name: str) -> str:
    """The word for a logger's source: ours by their module, libraries by their package."""
    if name == "homebase":
        return "homebase"
    parts = name.split(".")
    return parts[1] if parts[0] in ("server", "console", "homebase") and len(parts) > 1 else parts[0]


def escape_controls(text: str) -> str:
    """Text with control characters written out, so that what a client sent cannot steer a terminal or fake a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _install(handlers: list[logging.Handler]) -> None:
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    for handler in handlers:
        handler.setFormatter(_LineFormatter())
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_fault
    sys.unraisablehook = cast("Any", _log_unraisable)


def _log_thread_fault(fault: threading.ExceptHookArgs) -> None:
    name = fault.thread.name if fault.thread else "a thread"
    value = fault.exc_value or fault.exc_type()
    log.error("%s ended by a fault: %r", name, value, exc_info=(fault.exc_type, value, fault.exc_traceback))


def _log_unraisable(fault: Any) -> None:
    kind: type[BaseException] = fault.exc_type
    trace: TracebackType | None = fault.exc_traceback
    value = fault.exc_value or kind()
    log.error("%s: %r", fault.err_msg or "fault in a finalizer", value, exc_info=(kind, value, trace))


def _tag(record: logging.LogRecord) -> str:
    request_id = getattr(record, "request_id", None)
    return f" [{escape_controls(str(request_id))}]" if request_id else ""


def _message(record: logging.LogRecord) -> str:
    """The line without its traceback, but with the error that the traceback is of."""
    text = escape_controls(record.getMessage()[:LINE_CHARS])
    error = record.exc_info[1] if record.exc_info else None
    if error and str(error) not in text:
        text = f"{text}: {type(error).__name__}: {escape_controls(str(error)[:LINE_CHARS])}"
    return text[:LINE_CHARS]


def _level(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
