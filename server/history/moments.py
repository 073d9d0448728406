"""Moments as people type them: `90m`, `2h`, `3d` ago, or a date and a time of day. Pure."""

from __future__ import annotations

import re
from datetime import datetime

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

_SPAN = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?[smhdw])+", re.ASCII)
_PART = re.compile(r"([\d.]+)([smhdw])", re.ASCII)

EXAMPLES = "90m, 2h, 1h30m, 3d, 2w, 2026-11-30 or 2026-11-30T14:05"


def parse_moment(text: str, now_s: float) -> float:
    """Unix time of a moment: a span before now, or a date with or without a time, local when it names no zone.

    Raises ValueError with a sentence.
    """
    given = text.strip()
    if _SPAN.fullmatch(given.lower()):
        return now_s - sum(float(number) * UNITS_S[unit] for number, unit in _PART.findall(given.lower()))
    try:
        return datetime.fromisoformat(given).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is no moment; give for example {EXAMPLES}.") from None
