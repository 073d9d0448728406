"""Parameters of the chat dialect that are known and not honoured: refused by name unless they ask for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from server.errors import UnsupportedParameter


def _neutral(*values: Any) -> Callable[[Any], bool]:
    """True for null and for the given values, which ask for what is done anyway."""

    def is_neutral(given: Any) -> bool:
        return given is None or any(_same(given, value) for value in values)

    return is_neutral


def _same(given: Any, value: Any) -> bool:
    # In Python True == 1 and 0 == False; in a request they are different things.
    return isinstance(given, bool) == isinstance(value, bool) and given == value


UNBUILT: dict[str, Callable[[Any], bool]] = {
    "functions": _neutral([]),
    "function_call": _neutral("none", "auto"),
    "audio": _neutral(),
    "modalities": _neutral(["text"]),
    "prediction": _neutral(),
    "web_search_options": _neutral(),
    "verbosity": _neutral("medium"),
    "best_of": _neutral(1),
    "min_tokens": _neutral(0),
    "ignore_eos": _neutral(False),
    "stop_token_ids": _neutral([]),
    "typical_p": _neutral(1),
    "xtc_probability": _neutral(0),
    "structured_outputs": _neutral(),
    "guided_json": _neutral(),
    "guided_regex": _neutral(),
    "guided_choice": _neutral(),
    "guided_grammar": _neutral(),
    "grammar": _neutral(""),
    "json_schema": _neutral({}),
}
"""Name to whether a value asks for nothing."""

HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
    }
)
"""Known, accepted and without effect here: nothing that a client could see depends on them."""


def refuse_unbuilt(document: Mapping[str, Any]) -> None:
    """Raise UnsupportedParameter for the first parameter that asks for what is not built."""
    for name, is_neutral in UNBUILT.items():
        if name in document and not is_neutral(document[name]):
            raise UnsupportedParameter(
                f"`{name}` is not supported by this server; leave it out (it is never accepted and ignored).",
                param=name,
            )
