"""Notices in words: the same in the log file, on stderr and on the console's Log screen. Pure."""

from __future__ import annotations

from typing import Literal

from server.events import (
    AnyNotice,
    LogLine,
    ModelStateChanged,
    PolicyChanged,
    PolicyProblem,
    Refused,
    StreamEnded,
)

Level = Literal["debug", "info", "warning", "error"]

_ORIGINS = {"console": "saved in a console", "api": "saved over HTTP", "file": "file edited", "undo": "save undone"}


def describe_notice(notice: AnyNotice) -> tuple[Level, str, str]:
    """Level, source and text, without the id of its request; whoever prints it makes foreign characters safe."""
    match notice:
        case LogLine():
            return notice.level, notice.source, notice.message
        case Refused():
            return "warning", "refused", _describe_refusal(notice)
        case StreamEnded():
            return "error" if notice.outcome == "failed" else "info", "stream", _describe_end(notice)
        case PolicyChanged():
            changes = ", ".join(f"{key} {old} -> {new}" for key, old, new in notice.changes)
            by = f" by {notice.by}" if notice.by else ""
            return "info", "policy", f"{_ORIGINS[notice.origin]}{by}: {changes or 'no value changed'}"
        case PolicyProblem(message=""):
            return "info", "policy", "the file is valid again"
        case PolicyProblem():
            return "error", "policy", f"{notice.message} The policy before it stays in force."
        case ModelStateChanged():
            level: Level = "error" if notice.state == "failed" else "info"
            return level, "model", f"{notice.state}: {notice.detail}" if notice.detail else notice.state


def _describe_refusal(refused: Refused) -> str:
    who = f"{refused.client} ({refused.lane})" if refused.lane != "unknown" else refused.client
    again = f", retry after {refused.retry_after_s} s" if refused.retry_after_s is not None else ""
    return f"{who}: {refused.message} Sent {refused.status} {refused.code}{again}."


def _describe_end(ended: StreamEnded) -> str:
    detail = f" ({ended.detail})" if ended.detail else ""
    tokens = f"{ended.completion_tokens:,} token{'' if ended.completion_tokens == 1 else 's'}"
    ttft = f", TTFT {ended.ttft_s:.2f} s" if ended.ttft_s is not None else ""
    reused = f"; reused {ended.reuse}" if ended.reuse else ""
    return (
        f"{ended.client}: {ended.outcome}{detail} after {ended.age_s:.1f} s, prompt {ended.prompt_tokens:,}, "
        f"out {tokens}{ttft}{reused}"
    )
