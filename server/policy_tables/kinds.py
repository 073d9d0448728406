"""What every table of homebase.toml is made with: how a limit is described, and the patterns of its texts."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

LimitValue = int | float | str | bool | tuple[str, ...]
"""What one limit may hold."""


class Effect(StrEnum):
    """When a changed limit is felt. The values are the words that the console shows."""

    NEXT_DECISION = "at the next request's admission"
    NEXT_REQUEST = "at the next request"
    NEXT_STEP = "at the next engine step"
    AT_ONCE = "at once"
    NEXT_START = "at the next start"


def limit(
    description: str,
    effect: Effect,
    *,
    unit: str = "",
    secret: bool = False,
    allowed: str = "",
    **bounds: Any,
) -> msgspec.Meta:
    """The description of one limit: `allowed` says in words what bounds cannot, `bounds` are msgspec's."""
    extra = {"unit": unit, "effect": effect, "secret": secret, "allowed": allowed}
    return msgspec.Meta(description=description, extra=extra, **bounds)


ONE_LINE = r"\A[^\x00-\x1f\x7f\ud800-\udfff]*\Z"
"""Text without control characters: it is shown in a terminal and pasted by hand."""

NO_BLANKS = r"\A[^\s\x00-\x1f\x7f\ud800-\udfff]*\Z"

VISIBLE_ASCII = r"\A[\x21-\x7e]*\Z"
"""What an HTTP header carries unchanged from every client."""

KEY_NAME = r"\A[A-Za-z0-9][A-Za-z0-9_.-]*\Z"

VARIABLE = r"\A[A-Z_][A-Z0-9_]*\Z"
"""Of an environment variable: upper case only, so that a key pasted in its place is noticed and not looked up."""

CLIENT = r"\A[A-Za-z0-9][A-Za-z0-9_.-]*\Z"
"""The name with which a User-Agent begins, up to its slash or blank."""

ORIGIN = r"\A[A-Za-z][A-Za-z0-9+.-]*://[^\s/,\x00-\x1f\x7f\ud800-\udfff]+\Z"
"""Scheme, host and port, as a browser sends them: no path and no slash at the end, which would never match."""
