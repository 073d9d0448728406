"""Parameters of the Responses dialect that are known and not honoured: refused by name unless they ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.errors import InvalidRequest, UnsupportedParameter

UNBUILT: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "moderation": (),
    "context_management": ([],),
}
"""Name to the values, besides null, that ask for nothing."""

MOVED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""Names of the chat dialect to those of this one. Ignoring them would give another answer than was asked for."""

HARMLESS = frozenset(
    {
        "access_programs",
        "background_options",
        "client_metadata",
        "image",
        "max_tool_calls",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
    }
)
"""Known, accepted and without effect here: nothing that a client could see depends on them."""


def refuse_unbuilt(document: Mapping[str, Any]) -> None:
    """Raise for the first parameter that asks for what is not built, or that has another name in this dialect."""
    for name, neutral in UNBUILT.items():
        if not _asks_nothing(document.get(name), neutral):
            raise UnsupportedParameter(
                f"`{name}` is not supported by this server; leave it out (it is never accepted and ignored).",
                param=name,
            )
    for name, moved in MOVED.items():
        if document.get(name) is not None:
            raise InvalidRequest(f"`{name}` is no parameter of the Responses API; use `{moved}`.", param=name)


def _asks_nothing(given: Any, neutral: tuple[Any, ...]) -> bool:
    # In Python False == 0; in a request they are different things.
    return given is None or any(type(given) is type(value) and given == value for value in neutral)
