"""A homebase.toml as read: its bytes, what they mean, and where in it each limit stands.

Pure: bytes in, bytes out. A file that cannot be used is refused with a sentence that names the file and the line.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from server.errors import PolicyInvalid, PolicyUnwritable
from server.policy import (
    apply_changes,
    dotted,
    find_limit,
    list_foreign_tables,
    list_limits,
    read_limit,
    validate_policy,
)
from server.policy_file.edit import edit_text
from server.policy_file.scan import Entry, Scan, ScanFailed, scan
from server.policy_tables import LimitValue, Policy

DOTS = "••••••"
"""Stands for a secret that is set, whatever its length."""

_BOM = b"\xef\xbb\xbf"

_SECRETS = tuple(limit.key for limit in list_limits() if limit.secret)


class PolicyDocument(msgspec.Struct, frozen=True):
    """One version of the file that is in order."""

    data: bytes
    """The file, byte for byte; empty when there is none."""
    tables: dict[str, Any]
    """What tomllib reads in it."""
    policy: Policy
    """The values of the file, defaults where it says nothing."""
    lines: dict[str, int | None]
    """Dotted key of each limit that the file sets to its line, None where the line is not certain."""
    warnings: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file without its byte order mark."""
        return self.data.removeprefix(_BOM).decode()


EMPTY = PolicyDocument(data=b"", tables={}, policy=Policy(), lines={}, warnings=())
"""What a missing file means: every limit has its default."""


def compute_etag(data: bytes | None) -> str:
    """SHA-256 of a file's bytes in hex, empty for a file that is not there."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def read_document(data: bytes, name: str) -> PolicyDocument:
    """Read and validate a file's bytes; `name` is how sentences call the file.

    Raises PolicyInvalid with `name:LINE: sentence`; without the line where it is not certain.
    """
    text = _decode(data, name)
    tables = _parse(text, name)
    found = _scan_or_none(text)
    try:
        policy = validate_policy(tables)
    except PolicyInvalid as error:
        raise _locate(error.message, name, key=error.key, line=_find_line(found, tables, error.key or "")) from None
    lines = {limit.key: _find_line(found, tables, limit.key) for limit in list_limits() if _has_key(tables, limit.key)}
    warnings = tuple(
        f"{_place(name, _find_line(found, tables, dotted((table,))))}: [{table}] is no table of ours; it is left alone."
        for table in list_foreign_tables(tables)
    )
    return PolicyDocument(data, tables, policy, lines, warnings)


def edit_document(document: PolicyDocument, changes: Mapping[str, LimitValue], name: str) -> PolicyDocument:
    """The document with these dotted keys set, and nothing else different; the same object when all are set so.

    Raises PolicyInvalid for a value that is not allowed, PolicyUnwritable when the file's form allows no such edit.
    """
    wanted = validate_changes(document, changes)
    needed = {key: value for key, value in wanted.items() if read_limit(document.policy, key) != value}
    if not needed:
        return document
    table = next((key for key in needed if find_limit(key).kind == "table"), None)
    if table is not None:
        raise PolicyUnwritable(f"{table} is a table of your own names; edit it in {name}, which is noticed.")
    refusal = PolicyUnwritable(f"{name} is written in a way that cannot be edited here; change it in an editor.")
    try:
        text = edit_text(document.text, needed)
        edited = tomllib.loads(text)
    except (ScanFailed, ValueError, RecursionError):
        raise refusal from None
    if not _is_same(edited, apply_changes(document.tables, needed)):
        raise refusal
    bom = _BOM if document.data.startswith(_BOM) else b""
    return read_document(bom + text.encode(), name)


def show_diff(before: PolicyDocument, after: PolicyDocument) -> str:
    """The changed lines between two versions with two lines around them; secrets are dots."""
    renewed = after.policy != before.policy and any(
        read_limit(before.policy, key) and read_limit(before.policy, key) != read_limit(after.policy, key)
        for key in _SECRETS
    )
    old, new = _mask(before.text, DOTS), _mask(after.text, f"{DOTS} (new)" if renewed else DOTS)
    lines = difflib.unified_diff(_split_lines(old), _split_lines(new), n=2, lineterm="")
    return "\n".join(list(lines)[2:])


def _split_lines(text: str) -> list[str]:
    """By line feeds only: comments may hold what str.splitlines takes for line ends too."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _mask(text: str, dots: str) -> str:
    found = _scan_or_none(text)
    for entry in reversed(found.entries if found else ()):
        if dotted(entry.path) in _SECRETS and entry.end - entry.start > len('""'):
            text = f'{text[: entry.start]}"{dots}"{text[entry.end :]}'
    return text


def validate_changes(document: PolicyDocument, changes: Mapping[str, LimitValue]) -> dict[str, LimitValue]:
    """The changes with each value as its limit holds it (4 becomes 4.0 where that is meant).

    Raises PolicyInvalid for an unknown key, a wrong type, or a value out of range.
    """
    known = {limit.key for limit in list_limits()}
    unknown = next((key for key in changes if key not in known), None)
    if unknown is not None:
        validate_policy(apply_changes({}, {unknown: 0}))
        raise PolicyInvalid(f"Unknown key {unknown}.", key=unknown)
    policy = validate_policy(apply_changes(document.tables, changes))
    return {key: read_limit(policy, key) for key in changes}


def _decode(data: bytes, name: str) -> str:
    body = data.removeprefix(_BOM)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _locate("The file is not UTF-8 text.", name, line=body.count(b"\n", 0, error.start) + 1) from None
    lone = re.search(r"\r(?!\n)", text)
    if lone:
        line = text.count("\n", 0, lone.start()) + 1
        raise _locate("A carriage return stands here without a line feed; TOML has no such line end.", name, line=line)
    return text


_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _locate("Values are nested too deeply.", name) from None
    except tomllib.TOMLDecodeError as error:
        message = str(error)
    except ValueError:
        raise _locate("A number has too many digits.", name) from None
    place = _PLACE.search(message)
    said = message[: place.start()] if place else message
    if place and place[1]:
        line = _start_of_statement(text, int(place[1])) if said == _REPEATED else int(place[1])
        raise _locate(f"{_put_plainly(said)}.", name, line=line)
    raise _locate(f"{_put_plainly(said)}; the file ends in the middle of it.", name, line=_find_failure(text))


_REPEATED = "Cannot overwrite a value"

_PLAIN = {
    _REPEATED: "This key or table is given a second time",
    "Invalid value": "The value is missing or is not TOML (text needs quotes)",
    "Invalid statement": "This is neither a [table] nor a key = value",
    "Illegal character '\\n'": "A text is not closed on its line",
    "Expected newline or end of document after a statement": "Something stands after the value (text needs quotes)",
}
"""tomllib's words for what people get wrong most, in ours."""


def _put_plainly(said: str) -> str:
    twice = re.fullmatch(r"Cannot declare \((.*?),?\) twice", said)
    if twice:
        names = re.findall(r"'([^']*)'", twice[1])
        return f"The table [{'.'.join(names)}] is declared a second time"
    return _PLAIN.get(said, said)


def _start_of_statement(text: str, line: int) -> int:
    """tomllib names the line where a repeated key's value ends; people look for the key."""
    found = _scan_or_none(text)
    return max((item.line for item in found.statements if item.line <= line), default=line) if found else line


def _find_failure(text: str) -> int | None:
    """The line of the statement that the text ends in the middle of."""
    try:
        scan(text)
    except ScanFailed as failure:
        return failure.line
    except RecursionError:
        return None
    return None


def _scan_or_none(text: str) -> Scan | None:
    try:
        return scan(text)
    except (ScanFailed, RecursionError):
        return None


def _find_line(found: Scan | None, tables: Mapping[str, Any], key: str) -> int | None:
    """The line that sets a key or opens a table, if the scan agrees with what tomllib read there."""
    for statement in found.statements if found else ():
        written = dotted(statement.path)
        if written == key and isinstance(statement, Entry) and not _agrees(found, statement, tables):
            return None
        if written == key or (key and written.startswith(f"{key}.")):
            return statement.line
    return None


def _agrees(found: Scan | None, entry: Entry, tables: Mapping[str, Any]) -> bool:
    assert found is not None
    node: Any = tables
    try:
        for name in entry.path:
            node = node[name]
        return _is_same(tomllib.loads(f"value = {found.text[entry.start : entry.end]}")["value"], node)
    except (KeyError, TypeError, ValueError):
        return False


def _has_key(tables: Mapping[str, Any], key: str) -> bool:
    node: Any = tables
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return False
        node = cast("Mapping[str, Any]", node)[name]
    return True


def _is_same(one: Any, other: Any) -> bool:
    """Equal in type and value all the way down; NaN is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        left, right = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return left.keys() == right.keys() and all(_is_same(left[key], right[key]) for key in left)
    if isinstance(one, list):
        first, second = cast("list[Any]", one), cast("list[Any]", other)
        return len(first) == len(second) and all(map(_is_same, first, second))
    return one == other or (one != one and other != other)


def _place(name: str, line: int | None) -> str:
    return name if line is None else f"{name}:{line}"


def _locate(message: str, name: str, *, key: str | None = None, line: int | None = None) -> PolicyInvalid:
    return PolicyInvalid(f"{_place(name, line)}: {message}", key=key, line=line)
