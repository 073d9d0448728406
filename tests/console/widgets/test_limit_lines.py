"""The policy editor's lines: fixed widths, every limit once, nothing lost by wrapping."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.editing import LIMITS, Editing
from console.widgets.limit_lines import (
    DENSITIES,
    choose_rows,
    detail_lines,
    dial_line,
    diff_lines,
    field_span,
    list_lines,
    summary_line,
    told_lines,
    wrap,
)
from console.widgets.lines import line_width
from server.policy_store import PolicyDraft

KEY = "policy.max_in_flight"
GIB = 1 << 30


@pytest.fixture
def editing(source: Any) -> Editing:
    return Editing(source.state)


def plain(lines: Any) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@pytest.mark.parametrize("rows", DENSITIES, ids=len)
@pytest.mark.parametrize("width", [40, 66, 76, 104, 160])
def test_every_row_has_the_width_it_was_built_for(editing: Editing, rows: Any, width: int) -> None:
    edited = editing.typed(KEY, "9" * 200).typed("model.path", "/long/" * 40).typed("server.host", "日本語" * 20)
    assert {line_width(line) for line in list_lines(edited, rows, KEY, width)} == {width}


@pytest.mark.parametrize("rows", DENSITIES, ids=len)
def test_every_limit_has_one_row_and_policy_comes_first(rows: Any) -> None:
    keys = [row.key for row in rows if row.key and not row.is_meaning]
    assert sorted(keys) == sorted(LIMITS)
    assert keys[0] == KEY


def test_the_roomiest_list_that_fits_is_chosen() -> None:
    assert [len(choose_rows(height)) for height in (5, 28, 33, 50, 55, 99)] == sorted(
        len(choose_rows(height)) for height in (5, 28, 33, 50, 55, 99)
    )
    for height in range(len(DENSITIES[-1]), 80):
        assert len(choose_rows(height)) <= height


@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.parametrize(("width", "height"), [(76, 5), (44, 20), (44, 50), (20, 3)])
def test_details_keep_to_their_panel(editing: Editing, samples: Any, key: str, width: int, height: int) -> None:
    lines = detail_lines(editing.typed(key, "no such value"), key, samples.parent_and_child(), width, height)
    assert len(lines) <= height
    assert all(line_width(line) <= width for line in lines)


def test_what_is_wrong_comes_first_where_there_is_little_room(editing: Editing, samples: Any) -> None:
    lines = plain(detail_lines(editing.typed(KEY, "abc"), KEY, samples.snapshot(), 76, 5))
    assert lines[0] == "✕ 'abc' is not a whole number; allowed: 1 to 64."


def test_the_dial_shows_where_the_value_was_and_where_it_goes(editing: Editing) -> None:
    before = plain([dial_line(editing, LIMITS[KEY], 40)])[0]
    assert before.count("●") == 1
    after = plain([dial_line(editing.typed(KEY, "64"), LIMITS[KEY], 40)])[0]
    assert after.endswith("●")
    assert after.index("○") == before.index("●")
    assert dial_line(editing, LIMITS["model.path"], 40) == ()


@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.parametrize("width", [30, 66, 120])
def test_the_field_stays_inside_its_row(key: str, width: int) -> None:
    start, room = field_span(key, width)
    assert room >= 4
    assert start + room <= max(width, start + 4)


def test_the_diff_tells_what_is_left_out_of_it(editing: Editing) -> None:
    draft = PolicyDraft(diff="-a = 1\n+a = 2", etag="e", problem=None, notes=("--port goes before the file.",))
    text = plain(diff_lines(editing.typed(KEY, "abc").typed("server.port", "9000"), draft, 60, 20))
    assert text == [
        "✕ Not valid, and not in this diff: max_in_flight",
        "▲ --port goes before the file.",
        "-a = 1",
        "+a = 2",
    ]
    assert plain(diff_lines(editing, None, 60, 20)) == ["Nothing to save. Values shown are in force."]


def test_in_few_rows_the_changed_lines_stay(editing: Editing) -> None:
    draft = PolicyDraft(diff="@@ -1,3 +1,3 @@\n # a comment\n-a = 1\n+a = 2\n b = 3", etag="e", problem=None)
    edited = editing.typed(KEY, "4")
    assert len(diff_lines(edited, draft, 60, 5)) == 5
    assert plain(diff_lines(edited, draft, 60, 3)) == ["-a = 1", "+a = 2"]


@pytest.mark.parametrize("width", [30, 45, 80, 160])
def test_the_summary_keeps_to_its_width(editing: Editing, width: int) -> None:
    edited = editing.typed(KEY, "abc").typed("server.port", "9000")
    assert line_width(summary_line(edited, width)) == width
    if width >= 45:
        assert "▲ 2 not saved" in plain([summary_line(edited, width)])[0]


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cf", "Mn", "Me", "Mc", "Cs", "Cn"]), max_size=120),
    st.integers(4, 60),
)
def test_wrapping_loses_no_word_and_keeps_to_the_width(text: str, width: int) -> None:
    lines = plain(wrap(text, width))
    assert "".join("".join(lines).split(" ")) == "".join(text.split(" "))
    assert all(cell_len(line) <= width for line in lines)


def test_what_was_told_last_has_its_place_under_a_long_problem_and_warnings(editing: Editing) -> None:
    state = msgspec.structs.replace(editing.state, problem="box.toml:3: " + "no good " * 60, warnings=("one.", "two."))
    shown = plain(told_lines(Editing(state), ("●", "Saved."), 76))
    assert len(shown) == 4
    assert shown[0].startswith("✕ box.toml:3")
    assert shown[-1] == "● Saved."


def test_warnings_of_the_policy_are_told(editing: Editing) -> None:
    state = msgspec.structs.replace(editing.state, warnings=("server.api_key is empty.",))
    assert plain(told_lines(Editing(state), None, 76)) == ["▲ server.api_key is empty."]


def test_a_file_that_is_gone_is_not_called_broken(editing: Editing) -> None:
    state = msgspec.structs.replace(editing.state, problem="box.toml is gone.", exists=False)
    assert plain(told_lines(Editing(state), None, 76)) == ["▲ box.toml is gone."]
    assert "▲ file gone " in "".join(plain([summary_line(Editing(state).typed(KEY, "4"), 45)]))


@pytest.mark.parametrize(
    ("key", "amount"),
    [
        ("engine.memory_budget_gib", {"budget_bytes": 17 * GIB}),
        ("engine.prefix_cache_gib", {"prefix_cache_budget_bytes": 17 * GIB}),
    ],
)
def test_a_limit_left_to_the_server_says_what_it_made_of_it(
    editing: Editing, samples: Any, key: str, amount: dict[str, int]
) -> None:
    def read(**fields: int) -> str:
        memory = msgspec.structs.replace(samples.snapshot().memory, budget_bytes=0, prefix_cache_budget_bytes=0)
        shown = samples.snapshot(memory=msgspec.structs.replace(memory, **fields))
        return " ".join(" ".join(plain(detail_lines(editing, key, shown, 76, 20))).split())

    assert "in force -1.0, which is 17.0 GiB now" in read(**amount)
    assert "in force -1.0 GiB" in read(), "not known before the model is loaded"
