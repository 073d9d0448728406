"""How much the model shall think, from the several fields in which clients say it, to switches of the template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from server.api.decoding import show_value
from server.errors import InvalidRequest

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
"""Of OpenAI's `reasoning_effort`; the model's template knows three of them."""


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


def build_template_kwargs(thinking: Thinking, given: Mapping[str, Any]) -> dict[str, Any]:
    """Switches for the template: those that the client gave itself win over what its other fields mean."""
    switches: dict[str, Any] = {}
    is_on = thinking.is_on
    if thinking.effort is not None:
        is_on = thinking.effort != "none" if is_on is None else is_on
        if thinking.effort != "none":
            switches["reasoning_effort"] = thinking.effort
    if is_on is not None:
        switches["enable_thinking"] = is_on
    return {**switches, **given}
