"""The scanner: it finds what tomllib reads, and says on which line."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from server.policy_file.scan import ScanFailed, scan, scan_array

ODD = '''\
# head
"quoted table" = { 'a.b' = 1, c = { d = [1, 2,], e = "}" } } # c
x.y . "z" = \'\'\'
multi # not a comment
line ends in quotes\'\'\'\'\'
text = """ends in quotes \\""""" # "
[ policy ] # [not.a.table]
max_in_flight\t=\t1_024
list = [ # comment, with comma ]
  "a", 'b' , # two
  [ { k = 1 } ],
]
when = 1979-05-27 07:32:00
[[rows]]
n = 1
[[rows]]
n = -inf
[policy.'subagents']
max_depth = 0x10'''


def value_at(tables: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tables = tables[name]
    return tables


def test_every_entry_has_its_path_value_and_line() -> None:
    found, tables = scan(ODD), tomllib.loads(ODD)
    for entry in found.entries:
        if entry.path[0] != "rows":
            written = ODD[entry.start : entry.end]
            assert tomllib.loads(f"v = {written}")["v"] == value_at(tables, entry.path)
        assert ODD.count("\n", 0, entry.key) + 1 == entry.line
    assert [entry.path for entry in found.entries] == [
        ("quoted table",),
        ("quoted table", "a.b"),
        ("quoted table", "c"),
        ("quoted table", "c", "d"),
        ("quoted table", "c", "e"),
        ("x", "y", "z"),
        ("text",),
        ("policy", "max_in_flight"),
        ("policy", "list"),
        ("policy", "when"),
        ("rows", "n"),
        ("rows", "n"),
        ("policy", "subagents", "max_depth"),
    ]


def test_every_header_is_found() -> None:
    assert [(header.path, header.array, header.line) for header in scan(ODD).headers] == [
        (("policy",), False, 7),
        (("rows",), True, 14),
        (("rows",), True, 16),
        (("policy", "subagents"), False, 18),
    ]


def test_windows_line_ends_change_nothing_but_offsets() -> None:
    windows = ODD.replace("\n", "\r\n")
    assert [(s.path, s.line) for s in scan(windows).statements] == [(s.path, s.line) for s in scan(ODD).statements]


def test_array_elements_are_found_between_comments() -> None:
    text = "[ # ]\n 'a' , # 'x',\n [1, 2], {k = ']'}\n]"
    assert [text[start:end] for start, end in scan_array(text, 0)] == ["'a'", "[1, 2]", "{k = ']'}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = ", 2),
        ("a = 1\nb", 2),
        ("\n\na = [1,\n2\n", 3),
        ('a = 1\nb = """x\ny\n', 2),
        ("a = 1\n[b\nc = 1", 2),
        ("a = { b = 1\n", 1),
        ('"\\q" = 1', 1),
        ("a = 1 b = 2", 1),
    ],
)
def test_failure_names_the_line_where_the_statement_begins(text: str, line: int) -> None:
    with pytest.raises(ScanFailed) as caught:
        scan(text)
    assert caught.value.line == line
