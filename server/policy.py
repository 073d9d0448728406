"""What the operator may set: one frozen tree of limits, with range, unit and when each takes effect.

Pure: no file is read here and nothing is started. `policy_store` owns homebase.toml; this module says what is
right in it, and `policy_tables` holds the limits themselves.
"""

from __future__ import annotations

import difflib
import functools
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from server.errors import PolicyInvalid
from server.policy_tables import (
    AdmissionPolicy,
    ClientPolicy,
    ConsolePolicy,
    Effect,
    EnginePolicy,
    HistoryPolicy,
    LimitValue,
    ModelPolicy,
    Policy,
    ServerPolicy,
    SubagentPolicy,
    UpstreamPolicy,
)
from server.policy_tables.whole import check_whole

__all__ = [
    "AdmissionPolicy",
    "ClientPolicy",
    "ConsolePolicy",
    "Effect",
    "EnginePolicy",
    "HistoryPolicy",
    "Limit",
    "LimitValue",
    "ModelPolicy",
    "Policy",
    "ServerPolicy",
    "SubagentPolicy",
    "UpstreamPolicy",
    "apply_changes",
    "dotted",
    "find_limit",
    "list_foreign_tables",
    "list_limits",
    "parse_limit",
    "read_limit",
    "validate_policy",
]


class Limit(msgspec.Struct, frozen=True):
    """One row of the policy: what the console needs to show and edit it."""

    key: str
    """Dotted path in homebase.toml, e.g. `policy.subagents.max_depth`."""
    description: str
    unit: str
    effect: Effect
    default: LimitValue
    kind: Literal["int", "float", "str", "bool", "choice", "list", "table"]
    """A table has names of the operator's own in it; its value reads as one text for each line."""
    minimum: float | None
    maximum: float | None
    """Inclusive bounds of a number, None for anything else."""
    choices: tuple[LimitValue, ...]
    """All allowed values of a choice, empty for anything else."""
    secret: bool
    """True for a value that screens and snapshots must not show."""
    allowed: str
    """The range in words, e.g. `1 to 64` or `"auto", 400, 429`."""


@functools.cache
def list_limits() -> tuple[Limit, ...]:
    """Every limit of the policy, in the order of the file."""
    return tuple(_walk(Policy, "", Policy()))


@functools.cache
def _limits_by_key() -> dict[str, Limit]:
    return {limit.key: limit for limit in list_limits()}


def find_limit(key: str) -> Limit:
    """The limit at a dotted key; raises KeyError when there is none."""
    return _limits_by_key()[key]


def read_limit(policy: Policy, key: str) -> LimitValue:
    """The value of a dotted key in a policy; raises AttributeError or KeyError when there is none."""
    node: Any = policy
    for name in key.split("."):
        node = getattr(node, name)
    return _write_rows(node) if find_limit(key).kind == "table" else node


def _write_rows(table: dict[str, Any] | tuple[msgspec.Struct, ...]) -> tuple[str, ...]:
    """A text for each name in a table of the operator's own."""
    if isinstance(table, tuple):
        return tuple(_write_fields(each) for each in table)
    return tuple(
        f"{name}: {_write_fields(value)}" if isinstance(value, msgspec.Struct) else f"{name} = {value}"
        for name, value in table.items()
    )


def _write_fields(row: msgspec.Struct) -> str:
    """What is set in it."""
    found = {name: getattr(row, name) for name in row.__struct_fields__}
    shown = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return ", ".join(f"{name} = {value}" for name, value in shown.items() if value not in (None, "", [], False))


def dotted(path: tuple[str, ...]) -> str:
    """A path of names as TOML writes it: joined by dots, odd names quoted."""
    return ".".join(name if _BARE.fullmatch(name) else f'"{name}"' for name in path)


def validate_policy(document: Mapping[str, Any]) -> Policy:
    """The policy that a parsed homebase.toml means; tables of `list_foreign_tables` are left aside.

    Raises PolicyInvalid whose sentence names the key, what was given and what is allowed; for an unknown key it
    suggests the nearest known one. Strict: `true` is not 1, `"4"` is not 4 and 2.0 is not 2.
    """
    policy = _convert(document)
    check_whole(policy)
    return policy


def _convert(document: Mapping[str, Any]) -> Policy:
    foreign = list_foreign_tables(document)
    ours = {name: value for name, value in document.items() if name not in foreign}
    _refuse_unknown_keys(ours)
    try:
        return msgspec.convert(ours, Policy, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(error, ours) from None


def list_foreign_tables(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Top-level tables of other programs: named like none of ours, so not a slip of the pen."""
    ours = {*Policy.__struct_fields__, "subagents"}
    others = [name for name, value in document.items() if name not in ours and _is_table(value)]
    # 0.7: `policies` is a slip of the pen for `policy`; `mine` is no `engine` and `code` no `model` (0.6 and 0.67).
    return tuple(name for name in others if not difflib.get_close_matches(name.lower(), ours, n=1, cutoff=0.7))


def apply_changes(document: Mapping[str, Any], changes: Mapping[str, LimitValue]) -> dict[str, Any]:
    """A copy of a parsed document with dotted keys set; tables that are missing are made."""
    result = _deep_copy(document)
    for key, value in changes.items():
        *tables, name = key.split(".")
        node = result
        for table in tables:
            node = node.setdefault(table, {})
            if not isinstance(node, dict):
                raise PolicyInvalid(f"{table} must be a table, not {_kind_of(node)}.", key=table)
        node[name] = _write_plain(key, value)
    return result


def parse_limit(key: str, text: str) -> LimitValue:
    """What an operator typed for a limit, as its value.

    Exactly what was typed is judged, after blanks at both ends are dropped: nothing is clamped or rewritten.
    Raises PolicyInvalid with the allowed range.
    """
    limit = find_limit(key)
    if limit.kind == "table":
        raise PolicyInvalid(f"{key} is a table of your own names; edit it in the file, which is noticed.", key=key)
    value = _read_text(limit, text.strip())
    return read_limit(_convert(apply_changes({}, {key: value})), key)  # alone: what it names is in the file


_INT = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[+-]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_ROW = re.compile(r"[^\s:]+ = .*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")

_LONGEST_KEY = 80
"""Of a key that does not exist, so much is quoted."""

_LONGEST_NUMBER = 40
"""Characters of a typed number that are still read; far beyond every range, far below what int() refuses."""


def _write_plain(key: str, value: LimitValue) -> Any:
    """A value as tomllib would have read it."""
    if not isinstance(value, tuple):
        return value
    is_table = key in _limits_by_key() and find_limit(key).kind == "table"
    if not is_table or (key == "upstreams" and not value):  # a list of tables, of which there is none
        return list(value)
    if not all(_ROW.fullmatch(line) for line in value):
        raise PolicyInvalid("A table of your own names is edited in the file, which is noticed.")
    return dict(line.split(" = ", 1) for line in value)


def _read_text(limit: Limit, text: str) -> LimitValue:
    match limit.kind:
        case "int" | "float":
            return _read_number(limit, text)
        case "bool":
            found = [value for value in (True, False) if text == _show(value)]
        case "choice":
            found = [choice for choice in limit.choices if text in (str(choice), _show(choice))]
        case "list" | "table":
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case "str":
            return text
    return found[0] if found else _not_a("valid value", limit, text)


def _read_number(limit: Limit, text: str) -> LimitValue:
    whole = limit.kind == "int"
    if not (_INT if whole else _FLOAT).fullmatch(text):
        _not_a("whole number" if whole else "number", limit, text)
    if len(text) > _LONGEST_NUMBER:
        raise _refuse_value(limit, f"{text[:20]}...")
    return int(text) if whole else float(text)


def _not_a(what: str, limit: Limit, text: str) -> typing.NoReturn:
    given = f"{_clip(repr(text))} is not a {what}" if text else "nothing was given"
    raise PolicyInvalid(f"{limit.key}: {given}; allowed: {limit.allowed}.", key=limit.key)


def _refuse_value(limit: Limit, shown: str) -> PolicyInvalid:
    return PolicyInvalid(f"{limit.key}: {shown} is not allowed; allowed: {limit.allowed}.", key=limit.key)


def _walk(struct: type[msgspec.Struct], prefix: str, defaults: msgspec.Struct) -> Iterator[Limit]:
    hints = typing.get_type_hints(struct, include_extras=True)
    for name in struct.__struct_fields__:
        hint, default, key = hints[name], getattr(defaults, name), f"{prefix}{name}"
        if _is_struct(hint):
            yield from _walk(hint, f"{key}.", default)
        else:
            yield _build_limit(key, hint, default)


def _build_limit(key: str, hint: Any, default: LimitValue) -> Limit:
    inner, meta = typing.get_args(hint)
    origin = typing.get_origin(inner)
    choices = typing.get_args(inner) if origin is Literal else ()
    kind: Any = "choice" if choices else _CONTAINERS.get(origin) or inner.__name__
    if origin is tuple and _is_struct(typing.get_args(inner)[0]):
        kind = "table"
    extra = meta.extra
    return Limit(
        key=key,
        description=meta.description,
        unit=extra["unit"],
        effect=extra["effect"],
        default=() if kind == "table" else default,
        kind=kind,
        minimum=meta.ge,
        maximum=meta.le,
        choices=choices,
        secret=extra["secret"],
        allowed=extra["allowed"] or _describe_range(choices, kind, meta),
    )


_CONTAINERS: dict[Any, str] = {tuple: "list", dict: "table"}


def _describe_range(choices: tuple[LimitValue, ...], kind: str, meta: msgspec.Meta) -> str:
    if choices:
        return ", ".join(_show(choice) for choice in choices)
    if kind == "bool":
        return "true or false"
    assert meta.ge is not None, "text and lists say in words what they allow"
    assert meta.le is not None, "every number has both bounds"
    return f"{_plain(meta.ge)} to {_plain(meta.le)}"


def _plain(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


@functools.cache
def _list_fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return typing.get_type_hints(struct)


def _refuse_unknown_keys(
    document: Mapping[str, Any], struct: type[msgspec.Struct] = Policy, path: tuple[str, ...] = ()
) -> None:
    hints = _list_fields(struct)
    for name, value in document.items():
        key = dotted((*path, name))
        if name not in hints:
            told = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"
            raise PolicyInvalid(f"Unknown key {told}; {_suggest(name[:_LONGEST_KEY], hints, path)}", key=key)
        if not _is_struct(hints[name]):
            continue
        if not isinstance(value, Mapping):
            raise PolicyInvalid(f"{key} must be a table ([{key}]), not {_kind_of(value)}.", key=key)
        _refuse_unknown_keys(typing.cast("Mapping[str, Any]", value), hints[name], (*path, name))


def _suggest(name: str, known: Mapping[str, Any], path: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {dotted((*path, near[0]))}?"
    elsewhere = {limit.key.rpartition(".")[2]: limit.key for limit in list_limits()} | {"subagents": "policy.subagents"}
    near = difflib.get_close_matches(name.lower(), elsewhere, n=1, cutoff=0.8)
    return f"did you mean {elsewhere[near[0]]}?" if near else f"known here: {', '.join(known)}."


def _explain(error: msgspec.ValidationError, document: Mapping[str, Any]) -> PolicyInvalid:
    """msgspec says `Expected `int` >= 1 - at `$.policy.max_in_flight``; people want the value and the range too."""
    reason, _, where = str(error).replace("`key` in ", "").partition(" - at `$.")
    key = where.rstrip("`").partition("[")[0]
    try:
        limit = find_limit(key)
        given: Any = document
        for name in key.split("."):
            given = given[name]
    except (KeyError, TypeError):
        return PolicyInvalid(f"{reason}{f' at {key}' if key else ''}.", key=key or None)
    if limit.kind == "table" and _is_table(given):
        return PolicyInvalid(f"{key}: {_explain_row(reason, where)}; allowed: {limit.allowed}.", key=key)
    wanted = _WANTED.get(limit.kind)
    if wanted and _kind_of(given) not in wanted:
        return PolicyInvalid(
            f"{key}: {_show_unless_secret(limit, given)} is not {wanted[0]}; allowed: {limit.allowed}.", key=key
        )
    return _refuse_value(limit, _show_unless_secret(limit, given))


def _explain_row(reason: str, where: str) -> str:
    """What is wrong within a table of the operator's own, without the pattern that it had to match."""
    name = where.rstrip("`").rpartition(".")[2].rpartition("]")[2]
    if not name or "." not in where.partition("[")[2] or "regex" in reason:
        return "not all of it is allowed"
    return f"{name}: {reason[:1].lower()}{reason[1:]}"


_WANTED = {
    "int": ("a whole number",),
    "float": ("a number", "a whole number"),
    "str": ("text",),
    "list": ("a list",),
    "table": ("a table",),
}
"""What a limit of each kind must be given as, in the words of `_kind_of`; the first is told."""


def _kind_of(value: Any) -> str:
    match value:
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case _:
            return "a table" if isinstance(value, Mapping) else "a date or time"


def _show_unless_secret(limit: Limit, value: Any) -> str:
    return "what is given" if limit.secret or limit.key in _BESIDE_KEYS else _show(value)


_BESIDE_KEYS = ("server.api_keys_env", "server.keys")
"""Where a key may have been pasted in the place of its variable's name."""


def _show(value: Any) -> str:
    """A value in a sentence, close to how TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _clip(f'"{value}"' if value.isprintable() else repr(value))
    if isinstance(value, int | float):
        return (
            _clip(str(value)) if not isinstance(value, int) or value.bit_length() < _SHOWN_BITS else "the huge number"
        )
    return _kind_of(value)


_SHOWN_BITS = 256
"""int() refuses to write thousands of digits; nobody reads more than these."""


def _clip(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        items = typing.cast("list[Any]", value)
        return bool(items) and all(isinstance(item, Mapping) for item in items)
    return isinstance(value, Mapping)


def _deep_copy(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _deep_copy(typing.cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        for name, value in node.items()
    }
