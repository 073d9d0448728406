"""What an answer must look like, as grammars for llguidance: JSON, to a schema or not. Pure.

A schema is checked here for what no grammar can be made of, and by llguidance when the grammar is compiled (`guide`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from server.errors import InvalidRequest

SCHEMA_CHARS = 400_000
"""All schemas of a request together. One of 230,000 characters compiles in 50 ms (10,000 values of an enum), one of
2.5 million takes 0.8 s to be refused (llguidance 1.9.1, 2 x86 cores, 2026-11-30)."""

OPTIONAL_KEYS = 2_000
"""Of one object. Compiling takes the square of them: 0.3 s for 2,000, 1 s for 3,000 (llguidance 1.9.1, 2 x86 cores,
2026-11-30)."""

SCHEMA_LEVELS = 100
"""Of JSON, two to a nested object. llguidance's parser of JSON ends at 128, and a grammar adds a few of its own."""

LONGEST_LEAD = "\n\n"
LEAD = r"/\n{0,2}/"
"""Before the answer proper: the empty line that models leave after a thought. Each grammar begins with it."""

WHITESPACE = r" ?|\n[ \t]{0,40}"
"""Between the parts of a JSON text: one line, or one line each and indented. Without a bound a model that has lost
its way writes blanks until max_tokens."""


class Probe(msgspec.Struct, frozen=True):
    """A way that an answer may begin, after the lead; it is tried before anything is promised."""

    text: str
    owner: str
    """What stands there was made of it; the subject of a sentence."""
    lead: tuple[int, ...] = ()
    """Tokens in front of the text."""


class Grammar(msgspec.Struct, frozen=True):
    """A grammar, and what to say of it when it cannot be compiled."""

    text: str
    """In llguidance's dialect of Lark; what it matches begins at `start`."""
    param: str
    """The field of the request that it was made of."""
    owners: tuple[str, ...]
    """What each line of the text was made of, as the subject of a sentence."""
    probes: tuple[Probe, ...] = ()


def build_object_grammar(param: str) -> Grammar:
    """Any JSON object."""
    return build_schema_grammar({"type": "object"}, param)


def build_schema_grammar(schema: Any, param: str) -> Grammar:
    """JSON that is valid by a schema, its objects' keys in the schema's order. Raises InvalidRequest."""
    if not isinstance(schema, Mapping):
        raise InvalidRequest(f"{param} is no JSON schema: an object is needed.", param=param)
    check_schema(schema, param)
    line = f"start: {LEAD} {write_json_rule(cast('Mapping[str, Any]', schema))}"
    return join_lines([(line, "The schema")], param, list_probes("The schema"))


def list_probes(owner: str) -> tuple[Probe, ...]:
    """How JSON of a schema may begin: at a key, or at one inside of a list."""
    return tuple(Probe(text, owner) for text in ('{"', '[{"'))


def join_lines(lines: Iterable[tuple[str, str]], param: str, probes: tuple[Probe, ...]) -> Grammar:
    """A grammar of lines, each with what it was made of."""
    texts, owners = zip(*lines, strict=True)
    return Grammar("\n".join(texts) + "\n", param, owners, probes)


def write_json_rule(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """A schema as a term of a grammar. A lenient one leaves aside what llguidance does not know."""
    options = {"whitespace_pattern": WHITESPACE, "lenient": lenient, "coerce_one_of": lenient}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"  # in place of the caller's: those are settings


def check_schema(schema: Mapping[str, Any], param: str) -> None:
    """Raise InvalidRequest for a schema that is too large, too deep, too wide, or refers to what is elsewhere."""
    layer: list[Any] = [schema]
    for _ in range(SCHEMA_LEVELS + 1):
        layer = [child for node in layer for child in _list_children(node, param)]
        if not layer:
            break
    else:
        raise InvalidRequest(
            f"A schema may be nested {SCHEMA_LEVELS} levels deep; one in {param} is deeper. Flatten it, or refer to "
            "its parts by $ref.",
            param=param,
        )
    given = len(_dump(schema, param))
    if given > SCHEMA_CHARS:
        raise InvalidRequest(
            f"Schemas may have {SCHEMA_CHARS:,} characters together; {param} has {given:,}.", param=param
        )


def _list_children(node: Any, param: str) -> Iterable[Any]:
    if isinstance(node, list):
        return cast("list[Any]", node)
    if not isinstance(node, dict):
        return ()
    target = cast("dict[str, Any]", node).get("$ref")
    if isinstance(target, str) and not target.startswith("#"):
        raise InvalidRequest(
            f"A $ref in {param} points at {target[:100]!r}, and nothing is fetched for a schema; put it under "
            "$defs and point at '#/$defs/...'.",
            param=param,
        )
    _check_width(cast("dict[str, Any]", node), param)
    return cast("dict[str, Any]", node).values()


def _check_width(node: dict[str, Any], param: str) -> None:
    keys, required = node.get("properties"), node.get("required")
    if not isinstance(keys, dict) or len(keys) <= OPTIONAL_KEYS:
        return
    needed = {key for key in required if isinstance(key, str)} if isinstance(required, list) else set[str]()
    optional = len(cast("dict[str, Any]", keys).keys() - needed)
    if optional > OPTIONAL_KEYS:
        raise InvalidRequest(
            f"An object of a schema may have {OPTIONAL_KEYS:,} keys that are not required; one in {param} has "
            f"{optional:,}. Require some, or sort them into objects of their own.",
            param=param,
        )


def _dump(schema: Mapping[str, Any], param: str) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except ValueError as fault:
        raise InvalidRequest(f"{param} holds a number that JSON cannot write.", param=param) from fault
