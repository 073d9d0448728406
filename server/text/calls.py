"""The calls of one answer: their numbers and ids, and the schemas of the tools that were offered."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from server.text.parts import CallBegun, Part
from server.text.tools import Tool

Reading = Generator[Part | None, None, bool]
"""Reading that yields parts, and None whenever it wants more text."""


def build_call_id() -> str:
    """An id that no other call has: clients keep those of all answers of a conversation in one table."""
    return f"call_{secrets.token_hex(12)}"


class Calls:
    """Numbers the calls of one answer, in the order in which they begin."""

    def __init__(self, tools: Sequence[Tool], build_id: Callable[[], str] = build_call_id) -> None:
        self.definitions = tuple(tool.definition for tool in tools)
        """As mlx-lm's parsers take them."""
        self._parameters = {tool.name: tool.parameters for tool in tools}
        self._build_id = build_id
        self.count = 0
        """Calls that have begun."""

    def begin(self, name: str, call_id: str | None = None) -> CallBegun:
        """The next call, by an id that the model gave it or by one of ours."""
        begun = CallBegun(self.count, call_id or self._build_id(), name)
        self.count += 1
        return begun

    def find_parameters(self, name: str) -> Mapping[str, Any]:
        """The schema of a function's arguments; empty for one that was not offered."""
        return self._parameters.get(name, {})
