"""The policy editor as it looks, at all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from console.app import HomebaseApp
from console.widgets.limit_field import LimitField
from console.widgets.limit_table import LimitTable
from console.widgets.lines import Lines, line_width

KEY = "policy.max_in_flight"


async def test_looks_in_force(open_editor: Any, snap: Callable[..., None]) -> None:
    async with open_editor() as editor:
        await editor.snap_sizes(snap, "policy")


async def test_looks_edited(open_editor: Any, snap: Callable[..., None]) -> None:
    async with open_editor() as editor:
        await editor.type("1")
        await editor.go_to("policy.max_context_tokens")
        await editor.type("many")
        await editor.snap_sizes(snap, "policy-edited")


async def test_looks_in_conflict(open_editor: Any, snap: Callable[..., None]) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        await editor.press("escape")
        editor.change_outside(max_in_flight=3)
        await editor.tick()
        await editor.snap_sizes(snap, "policy-conflict")
        await editor.press("s")
        await editor.snap_sizes(snap, "policy-conflict-dialog")


async def test_looks_in_ascii(open_editor: Any) -> None:
    async with open_editor((80, 24), ascii=True) as editor:
        await editor.type("4")
        assert editor.text.isascii()
        await editor.press("escape", "r")
        assert editor.text.isascii()


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 30)])
async def test_rows_leave_room_for_the_scrollbar_from_the_start(
    make_app: Callable[..., HomebaseApp], source: Any, size: tuple[int, int]
) -> None:
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await pilot.pause()
        table = app.screen.query_one(LimitTable)
        assert table.show_vertical_scrollbar
        rows = table.query_one(Lines)
        assert {line_width(line) for line in rows.lines} == {rows.size.width}


async def test_the_screen_survives_being_resized_while_editing(open_editor: Any) -> None:
    async with open_editor() as editor:
        await editor.type("4")
        for width, height in ((60, 16), (200, 60), (40, 10), (20, 5), (120, 40)):
            await editor.pilot.resize_terminal(width, height)
            await editor.settle()
        assert editor.screen.query_one(LimitField).value == "4"
        assert "+max_in_flight = 4" in editor.text
