"""What the schema of a tool says of its parameters, one by one, where each is written by itself. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from server.errors import InvalidRequest

NUMBER_LIMIT = 10**18
"""A number that is a parameter by itself is at most so large, either way, unless its schema sets a limit: mlx-lm reads
it as a float and fails at an infinite one."""

REF_HOPS = 16
"""References that are followed one after another; more than anyone writes, and an end to those that go round."""

Schema = Mapping[str, Any]


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a tool."""

    key: str
    required: bool
    literals: tuple[str, ...]
    """The values that it has to be one of, as they are written; empty when it may be others."""
    is_text: bool
    """Whether it may be a string, which is then written as it is."""
    schema: Any
    """Of its JSON otherwise; stands by itself."""


def read_parameters(schema: Schema, subject: str, param: str) -> Iterator[Parameter]:
    """A tool's parameters in the order of its schema, one by one: all of them may be far more than the schema.

    Raises InvalidRequest for a schema that is none.
    """
    properties: dict[str, Any] = {}
    required: dict[str, None] = {}
    for part, is_certain in _list_parts(schema):
        properties |= _expect(part.get("properties", {}), Mapping, f"properties of {subject} is no object", param)
        names = _expect(part.get("required", []), list, f"required of {subject} is no list", param)
        if is_certain:
            required |= dict.fromkeys(
                _expect(name, str, f"required of {subject} has no names", param) for name in names
            )
    keys = dict.fromkeys(key for key in (*properties, *required) if properties.get(key) is not False)
    moved_root, known = _move_refs(schema), dict[int, bool]()
    for key in keys:
        value = properties.get(key, True)
        whole = _resolve(value, schema)
        own = _bound(whole) if whole.get("type") in ("integer", "number") else value
        moved = _move_refs(own)
        alone = own if moved == own else {**moved, "$defs": {"whole": moved_root}}
        yield Parameter(key, key in required, _list_literals(whole), _accepts_string(value, schema, known), alone)


def _list_parts(root: Schema) -> Iterable[tuple[Schema, bool]]:
    """The schemas that a whole one is joined of, and whether each holds in any case."""
    whole = _resolve(root, root)
    yield whole, True
    for key in ("allOf", "anyOf", "oneOf"):
        parts = whole.get(key)
        if isinstance(parts, list):
            yield from ((_resolve(part, root), key == "allOf") for part in cast("list[Any]", parts))


def _expect(value: Any, kind: type[Any], sentence: str, param: str) -> Any:
    if not isinstance(value, kind):
        raise InvalidRequest(f"In {param}, {sentence}.", param=param)
    return value


def _resolve(schema: Any, root: Schema) -> Schema:
    """A schema with what its own reference points at; an empty one for what is no object."""
    found = cast("Schema", schema) if isinstance(schema, Mapping) else {}
    for _ in range(REF_HOPS):
        target = found.get("$ref")
        if not isinstance(target, str):
            break
        beside = {key: value for key, value in found.items() if key != "$ref"}
        found = {**_point(target, root), **beside}
    return found


def _point(target: str, root: Any) -> Schema:
    """What a JSON pointer after # points at; empty when there is nothing."""
    for step in target.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        root = cast("Schema", root).get(key) if isinstance(root, Mapping) else None
    return cast("Schema", root) if isinstance(root, Mapping) else {}


def _list_literals(schema: Schema) -> tuple[str, ...]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return ()
    return tuple(value if isinstance(value, str) else json.dumps(value) for value in cast("list[Any]", values))


def _accepts_string(schema: Any, root: Schema, known: dict[int, bool]) -> bool:
    """Whether a string is among a schema's values. `known` holds each one asked: references may go round."""
    if id(schema) not in known:
        known[id(schema)] = False
        known[id(schema)] = schema is not False and _may_be_text(schema, root, known)
    return known[id(schema)]


def _may_be_text(schema: Any, root: Schema, known: dict[int, bool]) -> bool:
    whole = _resolve(schema, root)
    if "type" in whole:
        return whole["type"] == "string" or (isinstance(whole["type"], list) and "string" in whole["type"])
    for key, holds in (("anyOf", any), ("oneOf", any), ("allOf", all)):
        parts = whole.get(key)
        if isinstance(parts, list):
            return holds(_accepts_string(part, root, known) for part in cast("list[Any]", parts))
    return not any(key in whole for key in ("properties", "items", "additionalProperties"))


def _bound(schema: Schema) -> Schema:
    low = {} if "minimum" in schema or "exclusiveMinimum" in schema else {"minimum": -NUMBER_LIMIT}
    high = {} if "maximum" in schema or "exclusiveMaximum" in schema else {"maximum": NUMBER_LIMIT}
    return {**schema, **low, **high}


def _move_refs(node: Any) -> Any:
    """A part of a schema whose references find what they point at under `$defs`, in `whole`."""
    if isinstance(node, list):
        return [_move_refs(child) for child in cast("list[Any]", node)]
    if not isinstance(node, Mapping):
        return node
    moved = {key: _move_refs(child) for key, child in cast("Schema", node).items()}
    target = moved.get("$ref")
    return {**moved, "$ref": f"#/$defs/whole{target[1:]}"} if isinstance(target, str) else moved
