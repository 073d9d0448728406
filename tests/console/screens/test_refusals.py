"""The refusals: counted, filtered, told in full, and steady while new ones arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from textual.widgets import DataTable

from console.app import HomebaseApp
from console.screens.refusals import MOST_ROWS, RefusalsScreen
from console.screens.streams import StreamsScreen

if TYPE_CHECKING:
    from tests.console.conftest import FakeSource, Samples

MakeApp = Callable[..., HomebaseApp]
Read = Callable[[Any], str]
Snap = Callable[[Any, str], None]


def fill(source: FakeSource, samples: Samples, count: int = 6) -> None:
    clients = ("opencode", "curl", "openai-python")
    refusals = [
        samples.refused(
            time_s=1_796_040_000.0 + i,
            request_id=f"r-{i}",
            client=clients[i % 3],
            code="in_flight_full" if i % 4 else "model_loading",
            prompt_tokens=100 + i,
        )
        for i in range(count)
    ]
    source.publish(*refusals)
    codes = {code: sum(r.code == code for r in refusals) for code in ("in_flight_full", "model_loading")}
    admission = msgspec.structs.replace(
        source.shown.admission,
        refused_total=count,
        refused_by_code=codes,
        recent_refusals=tuple(reversed(refusals[-50:])),
    )
    source.change(admission=admission)


def table_of(app: HomebaseApp) -> DataTable[Any]:
    return app.screen.query_one("#refusal-table", DataTable)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("some", [False, True], ids=["none", "some"])
async def test_the_refusals_screen_as_kept(
    make_app: MakeApp, source: FakeSource, samples: Samples, snap: Snap, size: tuple[int, int], some: bool
) -> None:
    source.shown = samples.one_decode()
    if some:
        fill(source, samples)
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        await pilot.press("2")
        await pilot.pause()
        app.tick()
        await pilot.pause()
        snap(app, f"refusals-{'some' if some else 'none'}")


async def test_the_chosen_refusal_is_told_in_full(
    make_app: MakeApp, source: FakeSource, samples: Samples, read_screen: Read
) -> None:
    fill(source, samples)
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "down")
        await pilot.pause()
        text = read_screen(app)
        assert "prompt 104" in text
        assert "request r-4" in text
        assert "a slot is expected in about 12 s." in text


async def test_the_cursor_stays_on_its_row_when_a_new_one_arrives(
    make_app: MakeApp, source: FakeSource, samples: Samples
) -> None:
    fill(source, samples)
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "down", "down")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, RefusalsScreen)
        assert screen.chosen is not None
        assert screen.chosen.request_id == "r-3"
        source.publish(samples.refused(request_id="newest"))
        app.tick()
        await pilot.pause()
        assert screen.chosen.request_id == "r-3"
        assert table_of(app).cursor_row == 3
        assert table_of(app).row_count == 7


async def test_the_newest_row_stays_chosen_when_it_was(make_app: MakeApp, source: FakeSource, samples: Samples) -> None:
    fill(source, samples)
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2")
        await pilot.pause()
        assert table_of(app).cursor_row == 0


async def test_the_filter_narrows_and_escape_drops_it_then_leaves(
    make_app: MakeApp, source: FakeSource, samples: Samples, read_screen: Read
) -> None:
    fill(source, samples)
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "slash", *"CURL")
        await pilot.pause()
        assert table_of(app).row_count == 2
        assert "shown 2 of 6" in read_screen(app)
        await pilot.press("enter", "down")
        assert app.focused is table_of(app)
        await pilot.press("slash", *"zzz")
        await pilot.pause()
        assert "No refusal contains" in read_screen(app)
        await pilot.press("escape")
        await pilot.pause()
        assert table_of(app).row_count == 6
        assert isinstance(app.screen, RefusalsScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, StreamsScreen)


async def test_the_message_can_be_copied(make_app: MakeApp, source: FakeSource, samples: Samples) -> None:
    fill(source, samples)
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("2", "c")
        await pilot.pause()
        assert app.clipboard == samples.refused().message


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (100, 30), (120, 40), (140, 40), (200, 60)])
async def test_the_table_keeps_to_the_width_and_the_chosen_refusal_to_its_rows(
    make_app: MakeApp, source: FakeSource, samples: Samples, read_screen: Read, size: tuple[int, int]
) -> None:
    fill(source, samples, 100)
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        await pilot.press("2")
        await pilot.pause()
        table = table_of(app)
        assert table.virtual_size.width <= table.scrollable_content_region.width
        assert not table.show_horizontal_scrollbar
        text = read_screen(app)
        assert "about 12 s." in text or size[1] < 20


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40)])
async def test_bytes_stand_whole_in_the_table_and_the_name_gives_way(
    make_app: MakeApp, source: FakeSource, samples: Samples, size: tuple[int, int]
) -> None:
    client = "a-client-with-a-very-long-name/1.2"
    full = samples.refused(code="memory_budget_full", limit=64 * 2**30, used=61 * 2**30, client=client)
    source.publish(full, samples.refused(client=client))
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        await pilot.press("2")
        await pilot.pause()
        table = table_of(app)
        assert not table.show_horizontal_scrollbar
        cells = [str(cell) for cell in table.get_row_at(1)]
        assert "61.0 GiB of 64.0 GiB" in cells
        assert any(cell.startswith("a-cli") and cell.endswith("…") for cell in cells)


async def test_a_flood_keeps_the_newest(make_app: MakeApp, source: FakeSource, samples: Samples) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        fill(source, samples, MOST_ROWS + 40)
        app.tick()
        await pilot.pause()
        assert table_of(app).row_count == MOST_ROWS
        screen = app.screen
        assert isinstance(screen, RefusalsScreen)
        assert screen.chosen is not None


async def test_a_theme_change_keeps_the_rows(make_app: MakeApp, source: FakeSource, samples: Samples) -> None:
    fill(source, samples)
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2", "down")
        app.theme = "homebase-light"
        await pilot.pause()
        app.tick()
        await pilot.pause()
        assert table_of(app).row_count == 6
        assert table_of(app).cursor_row == 1
