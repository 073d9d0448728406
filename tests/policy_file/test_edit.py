"""Edits of a TOML text: the value and nothing else, or one line in the right table."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.policy import LimitValue, apply_changes
from server.policy_file.edit import edit_text, write_value

FULL = """\
# homebase of ada

[server]   # where
host = '127.0.0.1'   # literal
port    =  11_234
allowed_origins = [
    "http://a",   # first, with a comma
    # between
    'http://b'    # no comma after it
]

[notes]
text = "[policy]"   # not a table

[[runs]]
n = 1

[policy]
max_in_flight = 2   # parent + 1
  max_context_tokens = 32_768
subagents = { max_depth = 1, max_concurrent = 1 }   # inline

# about the console
[console]
ascii = false
[[runs]]
n = 2
"""


def check(before: str, changes: Mapping[str, LimitValue], after: str) -> None:
    edited = edit_text(before, changes)
    assert edited == after
    assert tomllib.loads(edited) == apply_changes(tomllib.loads(before), changes)


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({"policy.max_in_flight": 1}, "max_in_flight = 2   #", "max_in_flight = 1   #"),
        ({"server.port": 20000}, "=  11_234", "=  20_000"),
        ({"policy.max_context_tokens": 65536}, "32_768", "65_536"),
        ({"server.host": "::1"}, "'127.0.0.1'", "'::1'"),
        ({"server.host": "it's"}, "'127.0.0.1'", '"it\'s"'),
        ({"policy.subagents.max_depth": 3}, "max_depth = 1,", "max_depth = 3,"),
        ({"policy.subagents.sampling_limit": 4}, "rent = 1 }", "rent = 1, sampling_limit = 4 }"),
        ({"console.ascii": True}, "ascii = false", "ascii = true"),
        ({"policy.refusal_status": 503}, "# inline\n", "# inline\nrefusal_status = 503\n"),
        ({"console.theme": "x"}, "ascii = false\n", 'ascii = false\ntheme = "x"\n'),
        ({"server.allowed_origins": ("http://a", "http://b", "http://c")}, "b'    #", "b',    #"),
        ({"server.allowed_origins": ()}, FULL[FULL.index("[\n") : FULL.index("]\n\n[notes") + 1], "[]"),
    ],
)
def test_one_change_leaves_all_else(changes: dict[str, LimitValue], old: str, new: str) -> None:
    expected = FULL.replace(old, new)
    if changes == {"server.allowed_origins": ("http://a", "http://b", "http://c")}:
        expected = expected.replace("# no comma after it\n", "# no comma after it\n    'http://c'\n").replace(
            "    'http://c'", '    "http://c"'
        )
    check(FULL, changes, expected)


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (("http://b",), ["    # between", "    'http://b'    # no comma after it"]),
        (("http://a",), ['    "http://a"   # first, with a comma', "    # between"]),
        (
            ("http://z", "http://b"),
            ['    "http://z",   # first, with a comma', "    # between", "    'http://b'    # no comma after it"],
        ),
        (
            ("http://a", "http://z", "http://b"),
            [
                '    "http://a",   # first, with a comma',
                '    "http://z",',
                "    # between",
                "    'http://b'    # no comma after it",
            ],
        ),
    ],
)
def test_array_over_lines_keeps_the_comments_of_what_stays(values: tuple[str, ...], lines: list[str]) -> None:
    start, end = FULL.index("[\n") + 2, FULL.index("]\n\n[notes")
    check(FULL, {"server.allowed_origins": values}, FULL[:start] + "\n".join(lines) + "\n" + FULL[end:])


@pytest.mark.parametrize(
    ("before", "key", "after"),
    [
        ("", "policy.max_in_flight", "[policy]\nmax_in_flight = 7\n"),
        ("# only\n# words", "policy.max_in_flight", "# only\n# words\n\n[policy]\nmax_in_flight = 7"),
        ("# only\n", "policy.max_in_flight", "# only\n\n[policy]\nmax_in_flight = 7\n"),
        ("[policy]\nmax_in_flight = 1", "policy.max_in_flight", "[policy]\nmax_in_flight = 7"),
        ("[policy]", "policy.max_in_flight", "[policy]\nmax_in_flight = 7"),
        ("[server]\nport = 1\n[notes]\nx = 1\n", "policy.max_in_flight",
         "[server]\nport = 1\n\n[policy]\nmax_in_flight = 7\n[notes]\nx = 1\n"),
        ("[notes]\nx = 1\n\n", "policy.max_in_flight", "[notes]\nx = 1\n\n[policy]\nmax_in_flight = 7\n"),
        ("[policy]\nrefusal_status = 429\n\n[console]\n", "policy.subagents.max_depth",
         "[policy]\nrefusal_status = 429\n\n[policy.subagents]\nmax_depth = 7\n\n[console]\n"),
        ("[policy]\n# max_in_flight = 1\n\n[console]\n", "policy.subagents.max_depth",
         "[policy]\n# max_in_flight = 1\n\n[policy.subagents]\nmax_depth = 7\n\n[console]\n"),
        ("[policy.subagents]\nmax_depth = 1\n[notes]\n", "policy.max_in_flight",
         "[policy.subagents]\nmax_depth = 1\n\n[policy]\nmax_in_flight = 7\n[notes]\n"),
        ("policy.refusal_status = 429 # c\n[notes]\n", "policy.max_in_flight",
         "policy.refusal_status = 429 # c\npolicy.max_in_flight = 7\n[notes]\n"),
        ("policy.refusal_status = 429\n[notes]\n", "policy.subagents.max_depth",
         "policy.refusal_status = 429\npolicy.subagents.max_depth = 7\n[notes]\n"),
        ("[policy]\n  subagents.max_concurrent = 1\n[notes]\n", "policy.subagents.max_depth",
         "[policy]\n  subagents.max_concurrent = 1\n  subagents.max_depth = 7\n[notes]\n"),
        ("policy = {}\n", "policy.max_in_flight", "policy = { max_in_flight = 7 }\n"),
        ("policy = {refusal_status = 429} # c\n", "policy.subagents.max_depth",
         "policy = {refusal_status = 429, subagents.max_depth = 7} # c\n"),
        ("policy = {subagents = { max_depth = 1 }}", "policy.max_in_flight",
         "policy = {subagents = { max_depth = 1 }, max_in_flight = 7}"),
        ("[policy]\r\nrefusal_status = 429\r\n[x]\r\n", "policy.max_in_flight",
         "[policy]\r\nrefusal_status = 429\r\nmax_in_flight = 7\r\n[x]\r\n"),
        ("[policy]\r\nrefusal_status = 429", "policy.max_in_flight",
         "[policy]\r\nrefusal_status = 429\r\nmax_in_flight = 7"),
        ("# a\r\n", "policy.max_in_flight", "# a\r\n\r\n[policy]\r\nmax_in_flight = 7\r\n"),
        ("[[policy_runs]]\nmax_in_flight = 1\n", "policy.max_in_flight",
         "[[policy_runs]]\nmax_in_flight = 1\n\n[policy]\nmax_in_flight = 7\n"),
    ],
)  # fmt: skip
def test_missing_key_goes_into_its_own_table(before: str, key: str, after: str) -> None:
    check(before, {key: 7}, after)


@given(st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text(), st.lists(st.text(), max_size=3))
def test_written_value_reads_back(value: LimitValue, texts: list[str]) -> None:
    assert tomllib.loads(f"v = {write_value(value)}")["v"] == value
    assert tomllib.loads(f"v = {write_value(tuple(texts))}")["v"] == texts


KEYS: dict[str, st.SearchStrategy[Any]] = {
    "server.host": st.sampled_from(["::1", "it's", 'a"b', "ü"]),
    "server.port": st.integers(1, 65535),
    "server.allowed_origins": st.lists(st.sampled_from(["http://a", "http://b", "x://c", "y://d"]), max_size=5).map(
        tuple
    ),
    "engine.stall_s": st.sampled_from([20.0, 62.5, 3600.0]),
    "policy.max_in_flight": st.integers(1, 64),
    "policy.refusal_status": st.sampled_from(["auto", 429]),
    "policy.subagents.max_depth": st.integers(0, 16),
    "policy.subagents.cancel_on_turn_cancel": st.booleans(),
    "console.theme": st.text(alphabet="abc # =[]", min_size=1, max_size=5),
}
CHANGES = st.dictionaries(st.sampled_from(sorted(KEYS)), st.none(), max_size=6).flatmap(
    lambda chosen: st.fixed_dictionaries({key: KEYS[key] for key in chosen})
)
NOISE = st.lists(st.sampled_from(["", "# note, with [policy] and = in it", "   # x", "\t"]), max_size=2)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A policy file in any of the forms that TOML has for it, between comments and tables of others."""
    values: dict[str, Any] = draw(CHANGES)
    root: list[str] = []
    tables: list[list[str]] = []
    for table in ("server", "engine", "policy", "console"):
        mine = {key.removeprefix(f"{table}."): value for key, value in values.items() if key.startswith(f"{table}.")}
        if not mine:
            continue
        form = draw(st.sampled_from(["header", "dotted", "inline"]))
        written = {name: draw(written_values(value)) for name, value in mine.items()}
        if form == "inline":
            inside = ", ".join(f"{name} = {value}" for name, value in written.items() if "\n" not in value)
            root += [*draw(NOISE), f"{table}   = {{{inside}}} # inline"]
        elif form == "dotted":
            root += [line for name, value in written.items() for line in (*draw(NOISE), f"{table} . {name}={value}")]
        else:
            tables.append([f"[ {table} ] # t", *draw(rows(written))])
    for name in draw(st.lists(st.sampled_from(["notes", "tool.x"]), unique=True)):
        tables.append([f"[{name}]", "max_in_flight = 1_0", *draw(NOISE)])
    if draw(st.booleans()):
        tables.append(["[[runs]]", "n = [1, # one,", " 2 ]"])
    root += [line for part in draw(st.permutations(tables)) for line in (*draw(NOISE), *part)]
    text = "\n".join(root) + draw(st.sampled_from(["", "\n", "\n\n"]))
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@st.composite
def rows(draw: st.DrawFn, written: dict[str, str]) -> list[str]:
    """The lines of a table; what belongs to its sub-table is dotted or gets a header of its own."""
    direct = {name: value for name, value in written.items() if "." not in name or draw(st.booleans())}
    if any("." in name for name in direct):
        direct = written
    lines = [line for name, value in direct.items() for line in (*draw(NOISE), f"{name} =  {value} # c")]
    rest = [f"{name.partition('.')[2]} = {value}" for name, value in written.items() if name not in direct]
    return [*lines, "[policy.subagents]", *rest] if rest else lines


@st.composite
def written_values(draw: st.DrawFn, value: Any) -> str:
    if not isinstance(value, tuple) or not draw(st.booleans()):
        return write_value(value)
    comma, comment = draw(st.sampled_from(["", ","])), draw(st.sampled_from(["", " # x, y", "\n  # alone"]))
    lines = [f"  {write_value(one)}{',' if at < len(value) - 1 else comma}{comment}" for at, one in enumerate(value)]  # pyright: ignore[reportUnknownVariableType]
    return "\n".join(["[", *lines, "]"])


@given(texts(), st.lists(CHANGES, min_size=1, max_size=4))
def test_any_edits_of_any_file_change_only_their_keys(text: str, edits: list[dict[str, LimitValue]]) -> None:
    for changes in edits:
        edited = edit_text(text, changes)
        assert tomllib.loads(edited) == apply_changes(tomllib.loads(text), changes)
        assert ("\r\n" in edited) >= ("\r\n" in text)
        assert edited.replace("\r\n", "").count("\r") == 0
        if "\r\n" in text:
            assert edited.count("\n") == edited.count("\r\n")
        assert edited.endswith("\n") == text.endswith("\n") or not text
        text = edited


@given(texts(), CHANGES)
def test_lines_of_other_keys_stay_in_order(text: str, changes: dict[str, LimitValue]) -> None:
    changes = {key: value for key, value in changes.items() if key != "server.allowed_origins"}
    lines = edit_text(text, changes).split("\n")
    lost = [line for line in text.split("\n") if line not in lines]
    assert len(lost) <= len(changes) + 1  # one for a last line that gets a line end
    kept = [line for line in text.split("\n") if line in lines]
    remaining = iter(lines)
    assert all(line in remaining for line in kept)


@given(texts(), CHANGES)
def test_same_values_again_leave_the_text(text: str, changes: dict[str, LimitValue]) -> None:
    once = edit_text(text, changes)
    assert edit_text(once, changes) == once
