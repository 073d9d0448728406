"""How much the model shall think, from the several fields in which clients say it."""

from __future__ import annotations

import msgspec

from server.api.decoding import show_value
from server.errors import InvalidRequest
from server.text.thinking import NEAREST_EFFORTS, NO_EFFORT

EFFORTS = (NO_EFFORT, *NEAREST_EFFORTS)
"""Of OpenAI's `reasoning_effort`; `server.text.thinking` has what each is for a template."""


class Thinking(msgspec.Struct, frozen=True):
    """What a request says of thinking; null where it says nothing."""

    is_on: bool | None = None
    effort: str | None = None
    """One of EFFORTS."""
    budget_tokens: int | None = None
    """The most tokens of thought."""


def read_effort(effort: str | None, param: str) -> str | None:
    """An effort that is known. Raises InvalidRequest."""
    if effort is None or effort in EFFORTS:
        return effort
    allowed = ", ".join(EFFORTS[:-1])
    raise InvalidRequest(
        f"`{param}` must be one of {allowed} or {EFFORTS[-1]}; {show_value(effort)} was given.", param=param
    )
