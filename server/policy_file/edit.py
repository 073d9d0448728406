"""The smallest edit of a TOML text that sets a key: only its value, or one new line in the right table.

Pure. Everything else keeps its bytes: comments, spacing, `1_024`, inline tables, dotted keys, line endings, a missing
newline at the end. tomlkit was tried for this and puts a new key under the comments of the next table, adds blank
lines and drops the comments inside an array.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence

import msgspec
from tomlkit import item

from server.policy import Policy
from server.policy_file.scan import Entry, Header, Path, Scan, scan, scan_array
from server.policy_tables import LimitValue

_TABLES = Policy.__struct_fields__
"""Our top-level tables in the order of the file."""


def write_value(value: LimitValue) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, tuple):
        return f"[{', '.join(write_value(element) for element in value)}]"
    return item(value).as_string()


def edit_text(text: str, changes: Mapping[str, LimitValue]) -> str:
    """The text with dotted keys set. Raises ScanFailed for a text that cannot be scanned."""
    for key, value in changes.items():
        text = _set_value(scan(text), tuple(key.split(".")), value)
    return text


def _set_value(found: Scan, path: Path, value: LimitValue) -> str:
    entry = found.find_entry(path)
    if entry is not None:
        return _splice(found.text, entry.start, entry.end, _rewrite(found.text, entry, value))
    for depth in range(len(path) - 1, 0, -1):
        table = path[:depth]
        around = found.find_entry(table)
        if around is not None:
            return _add_inline(found.text, around, path[depth:], value)
        sibling = _last_dotted(found, table)
        if sibling is not None:
            return _add_beside(found.text, sibling, path, value)
        header = next((h for h in found.headers if h.path == table and not h.array), None)
        if header is not None and depth == len(path) - 1:
            return _add_to_table(found, header, path[-1], value)
    return _add_table(found, path, value)


def _splice(text: str, start: int, end: int, new: str) -> str:
    return f"{text[:start]}{new}{text[end:]}"


def _rewrite(text: str, entry: Entry, value: LimitValue) -> str:
    """A new value in the manner of the old one: `1_024` stays grouped, `'text'` keeps its quotes."""
    old = text[entry.start : entry.end]
    if isinstance(value, tuple) and "\n" in old:
        return _rewrite_array(old, value)
    return _write_like(old, value)


def _write_like(old: str, value: LimitValue) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and "_" in old and old.replace("_", "").isdecimal():
        return f"{value:_}"
    if isinstance(value, str) and old[0] == "'" and value.isprintable() and "'" not in value:
        return f"'{value}'"
    return write_value(value)


def _add_inline(text: str, around: Entry, names: Path, value: LimitValue) -> str:
    """Into `{ a = 1 }`, after its last entry."""
    body = text[around.start + 1 : around.end - 1]
    written = f"{'.'.join(names)} = {write_value(value)}"
    if not body.strip():
        return _splice(text, around.start, around.end, f"{{ {written} }}")
    at = around.start + 1 + len(body.rstrip())
    return _splice(text, at, at, f"{' ' if body.rstrip().endswith(',') else ', '}{written}")


def _last_dotted(found: Scan, table: Path) -> Entry | None:
    """The last entry that makes `table` by a dotted key; such a table must go on in the same way."""
    inside = [
        entry
        for entry in found.entries
        if not entry.inline and len(entry.table) < len(table) < len(entry.path) and entry.path[: len(table)] == table
    ]
    return inside[-1] if inside else None


def _add_beside(text: str, sibling: Entry, path: Path, value: LimitValue) -> str:
    written = ".".join(path[len(sibling.table) :])
    return _add_line(text, sibling.end, f"{_indent(text, sibling.key)}{written} = {write_value(value)}")


def _add_to_table(found: Scan, header: Header, name: str, value: LimitValue) -> str:
    last = _section(found, header)[-1]
    start = last.key if isinstance(last, Entry) else last.start
    return _add_line(found.text, last.end, f"{_indent(found.text, start)}{name} = {write_value(value)}")


def _add_table(found: Scan, path: Path, value: LimitValue) -> str:
    """A new table after the one it belongs behind: its parent, its children, or the table before it in our order."""
    lines = ("", f"[{'.'.join(path[:-1])}]", f"{path[-1]} = {write_value(value)}")
    for name in reversed(_TABLES[: _TABLES.index(path[0]) + 1]):
        headers = [header for header in found.headers if header.path[0] == name]
        if headers:
            end = _section(found, headers[-1])[-1].end
            return _add_line(found.text, _end_of_comments(found.text, end), *lines)
    return _append(found.text, lines)


_COMMENTS_BELOW = re.compile(r"[^\n]*\n(?:[ \t]*#[^\n]*\n)*(?:[ \t]*#[^\n]*\Z|(?=[ \t]*\r?\n|\Z))")


def _end_of_comments(text: str, end: int) -> int:
    """Past the comment lines that follow without a gap; those right above a header belong to that header."""
    found = _COMMENTS_BELOW.match(text, end)
    return len(text[: found.end()].rstrip()) if found else end


def _section(found: Scan, header: Header) -> Sequence[Header | Entry]:
    """A header and all entries up to the next header."""
    start = found.statements.index(header)
    stop = next(
        (at for at, later in enumerate(found.statements) if at > start and isinstance(later, Header)),
        len(found.statements),
    )
    # An inline table ends after the entries in it, so the last to end is not always the last to begin.
    return sorted(found.statements[start:stop], key=lambda item: item.end)


def _add_line(text: str, after: int, *lines: str) -> str:
    """New lines below the line in which `after` stands."""
    newline = text.find("\n", after)
    if newline < 0:
        return text + "".join(f"{_newline_of(text)}{line}" for line in lines)
    ending = "\r\n" if text[newline - 1 : newline] == "\r" else "\n"
    return _splice(text, newline + 1, newline + 1, "".join(f"{line}{ending}" for line in lines))


def _append(text: str, lines: Sequence[str]) -> str:
    """New lines at the end; a text without a newline at its end stays without."""
    ending = _newline_of(text)
    if not text:
        return "".join(f"{line}{ending}" for line in lines[1:])
    if not text.endswith("\n"):
        return text + "".join(f"{ending}{line}" for line in lines)
    skip = 1 if text.endswith(("\n\n", "\n\r\n")) else 0
    return text + "".join(f"{line}{ending}" for line in lines[skip:])


def _newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent(text: str, at: int) -> str:
    """The blanks between the start of the line and `at`."""
    start = text.rfind("\n", 0, at) + 1
    before = text[start:at]
    return before if not before.strip(" \t") else ""


class _Row(msgspec.Struct, frozen=True):
    """One line inside an array; `element` is empty in a line that holds none. The comma is left out."""

    before: str
    element: str
    after: str


def _rewrite_array(array: str, values: tuple[str, ...]) -> str:
    """An array with one element a line, changed line by line: comments beside the other elements stay."""
    rows = _read_rows(array)
    places = [at for at, row in enumerate(rows) if row.element]
    if not places or not values:
        return write_value(values)
    old = [tomllib.loads(f"value = {rows[at].element}")["value"] for at in places]
    new = [_write_like(rows[places[0]].element, value) for value in values]
    trailing = array[scan_array(array, 0)[-1][1] :].lstrip().startswith(",")
    for tag, first, last, low, high in reversed(
        difflib.SequenceMatcher(None, old, values, autojunk=False).get_opcodes()
    ):
        if tag != "equal":
            _change_rows(rows, places[first:last], places[max(last - 1, 0)] + (last > 0), new[low:high])
    final = max(at for at, row in enumerate(rows) if row.element)
    return "".join(
        f"{row.before}{row.element}{',' if row.element and (trailing or at != final) else ''}{row.after}"
        for at, row in enumerate(rows)
    )


def _change_rows(rows: list[_Row], places: Sequence[int], below: int, new: Sequence[str]) -> None:
    """Put `new` into the rows at `places`; what is too many goes in before row `below`, what is too few goes."""
    model = next(row for row in rows if row.element)
    ending = "\r\n" if rows[0].before.endswith("\r\n") else "\n"
    rows[below:below] = [_Row(model.before, written, ending) for written in new[len(places) :]]
    for at, written in zip(places, new, strict=False):
        rows[at] = _Row(rows[at].before, written, rows[at].after)
    for at in reversed(places[len(new) :]):
        del rows[at]


_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_COMMA = re.compile(r"[ \t]*,")
_NOTHING_MORE = re.compile(r"[ \t]*(#[^\n]*)?\r?\n")
_NO_ELEMENT = re.compile(r"[ \t]*[\[\]]?[ \t]*(#[^\n]*)?(\r?\n)?")


def _read_rows(array: str) -> list[_Row]:
    """The lines of an array; none when it has another form than one element a line."""
    rows: list[_Row] = []
    spans = dict(scan_array(array, 0))
    for line in _LINE.finditer(array):
        inside = [start for start in spans if line.start() <= start < line.end()]
        if not inside and _NO_ELEMENT.fullmatch(line.group()):
            rows.append(_Row(line.group(), "", ""))
            continue
        if len(inside) != 1 or array[line.start() : inside[0]].strip():
            return []
        end = spans[inside[0]]
        comma = _COMMA.match(array, end)
        after = array[comma.end() if comma else end : line.end()]
        if not _NOTHING_MORE.fullmatch(after):
            return []
        rows.append(_Row(array[line.start() : inside[0]], array[inside[0] : end], after))
    return rows
