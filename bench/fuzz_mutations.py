"""Changes one place of a good body: something else there, more, less, or nothing."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from fuzz_bodies import BASES, EXTREMES, ODD_TEXTS, ODD_VALUES

# Copied, because a later mutation may change what an earlier one put there.
_ODD = st.sampled_from(ODD_VALUES).map(copy.deepcopy)
ANY_JSON = st.recursive(
    _ODD | st.text(max_size=8) | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def mutate(draw: st.DrawFn, body: dict[str, Any]) -> None:
    """Change one place of a body."""
    owner, key = draw(st.sampled_from(_list_places(body)))
    value = owner[key]
    match draw(st.sampled_from(_CHANGES)):
        case "replace":
            owner[key] = draw(_ODD)
        case "grow":
            owner[key] = draw(ANY_JSON)
        case "drop":
            del owner[key]
        case "wrap":
            owner[key] = draw(st.sampled_from(([value], {"value": value}, [value] * 40, str(value))))
        case "add" if isinstance(value, dict):
            value[draw(st.sampled_from(("type", "content", "id", "name", "cache_control", *ODD_TEXTS)))] = draw(
                ANY_JSON
            )
        case _ if isinstance(value, list) and value:
            value.insert(0, copy.deepcopy(value[-1]))
        case _:
            body[draw(st.sampled_from(_NAMES))] = draw(_ODD)
    if not body:
        body["model"] = "nano"


_CHANGES = ("replace", "replace", "replace", "grow", "drop", "wrap", "add", "other")
_NAMES = sorted({name for bases in BASES.values() for base in bases for name in base} | {name for name, _ in EXTREMES})


def _list_places(node: Any) -> list[tuple[Any, Any]]:
    """Every place in a body, as its owner and key."""
    places: list[tuple[Any, Any]] = []
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        places.append((node, key))
        places += _list_places(node[key])
    return places
