"""The home screen in every state and size; choosing, opening and the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from rich.cells import cell_len, set_cell_size

from console.app import HomebaseApp
from console.screens.detail import DetailScreen
from console.screens.dialogs import ConfirmDialog
from console.screens.streams import StreamsScreen
from console.widgets.home_plan import plan_home
from console.widgets.stream_table import StreamTable, choose_columns
from server.snapshot import Snapshot, StreamView

if TYPE_CHECKING:
    from tests.console.conftest import FakeSource, Samples

MakeApp = Callable[..., HomebaseApp]
MakeSource = Callable[[Snapshot], "FakeSource"]
Read = Callable[[Any], str]
Snap = Callable[[Any, str], None]
SIZES = ((80, 24), (120, 40), (200, 60))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    "state",
    ["empty", "nano", "one_decode", "parent_and_child", "with_finished", "loading", "engine_dead", "stale", "many"],
)
async def test_the_home_screen_as_kept(
    make_app: MakeApp, make_source: MakeSource, samples: Samples, snap: Snap, state: str, size: tuple[int, int]
) -> None:
    app = make_app(make_source(getattr(samples, state)()))
    async with app.run_test(size=size) as pilot:
        app.tick()
        await pilot.pause()
        snap(app, f"streams-{state.replace('_', '-')}")


async def test_the_home_screen_in_ascii_as_kept(
    make_app: MakeApp, source: FakeSource, snap: Snap, read_screen: Read
) -> None:
    app = make_app(source, ascii=True)
    async with app.run_test(size=(80, 24)) as pilot:
        app.tick()
        await pilot.pause()
        assert read_screen(app).isascii()
        snap(app, "streams-ascii")


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_ascii_means_every_sign_on_every_size(
    make_app: MakeApp, make_source: MakeSource, samples: Samples, read_screen: Read, size: tuple[int, int]
) -> None:
    app = make_app(make_source(samples.stale()), ascii=True)
    async with app.run_test(size=size) as pilot:
        for key in ("1", "v", "enter", "2"):
            await pilot.press(key)
            app.tick()
            await pilot.pause()
            assert read_screen(app).isascii(), key


async def test_states_can_be_told_without_colours(
    make_app: MakeApp,
    make_source: MakeSource,
    samples: Samples,
    read_screen: Read,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(make_source(samples.parent_and_child()))
    async with app.run_test(size=(80, 24)) as pilot:
        app.tick()
        await pilot.pause()
        text = read_screen(app)
        for sign in ("● decode", "◐ prefill", "▲ REFUSING", "█ cached", "▓ prefilled", "▒ generated", "░ to read"):
            assert sign in text
        assert "┏━ parent" in text
        assert "╭─ child" in text


async def test_numbers_move_with_the_snapshot(make_app: MakeApp, source: FakeSource, read_screen: Read) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        app.tick()
        await pilot.pause()
        assert "out 1,204 of 8,192" in read_screen(app)
        parent, child = source.shown.streams
        source.change(streams=(msgspec.structs.replace(parent, completion_tokens=1_299), child))
        app.tick()
        await pilot.pause()
        assert "out 1,299 of 8,192" in read_screen(app)


async def test_nothing_is_drawn_when_nothing_changed(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        app.tick()
        await pilot.pause()
        strips = [widget.render_line(0) for widget in app.screen.query("Lines").results()]
        app.tick()
        await pilot.pause()
        again = [widget.render_line(0) for widget in app.screen.query("Lines").results()]
        assert all(one is other for one, other in zip(strips, again, strict=True))


@pytest.mark.parametrize(("down", "up"), [("j", "k"), ("down", "up"), ("end", "home"), ("G", "g")])
async def test_keys_choose_a_band(make_app: MakeApp, source: FakeSource, down: str, up: str) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.screen
        assert isinstance(screen, StreamsScreen)
        await pilot.press(down)
        assert screen.chosen is not None
        assert screen.chosen.id == "s-42"
        await pilot.press(down)
        assert screen.chosen.id == "s-42"
        await pilot.press(up)
        assert screen.chosen.id == "s-41"


@pytest.mark.parametrize("key", ["enter", "l"])
async def test_enter_opens_the_chosen_stream_and_escape_comes_back(
    make_app: MakeApp, source: FakeSource, key: str
) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j", key)
        assert isinstance(app.screen, DetailScreen)
        assert app.screen.stream.id == "s-42"
        await pilot.press("escape")
        assert isinstance(app.screen, StreamsScreen)


async def test_clicking_a_band_chooses_it_and_again_opens_it(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        app.tick()
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, StreamsScreen)
        await pilot.click("#home-bands", offset=(20, 7))
        assert screen.chosen is not None
        assert screen.chosen.id == "s-42"
        await pilot.click("#home-bands", offset=(20, 7))
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)


async def test_the_choice_follows_its_stream_and_moves_on_when_it_is_gone(
    make_app: MakeApp, source: FakeSource, samples: Samples
) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.screen
        assert isinstance(screen, StreamsScreen)
        await pilot.press("j")
        newcomer = samples.stream(id="s-99", session="new", client="curl")
        source.shown = samples.snapshot(newcomer, *source.shown.streams)
        app.tick()
        assert screen.chosen is not None
        assert screen.chosen.id == "s-42"
        source.shown = samples.snapshot(newcomer)
        app.tick()
        assert screen.chosen.id == "s-99"


async def test_v_shows_a_table_and_bands_again(make_app: MakeApp, source: FakeSource, snap: Snap) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("j", "v")
        await pilot.pause()
        assert app.screen.query_one(StreamTable).display
        assert app.screen.query_one(StreamTable).chosen_id == "s-42"
        await pilot.press("k")
        snap(app, "streams-as-table")
        await pilot.press("enter")
        assert isinstance(app.screen, DetailScreen)
        assert app.screen.stream.id == "s-41"
        await pilot.press("escape", "v")
        await pilot.pause()
        assert not app.screen.query_one(StreamTable).display
        assert app.focused is not None
        assert app.focused.id == "home-bands"


async def test_the_table_keeps_its_cursor_while_rows_come_go_and_change(
    make_app: MakeApp, make_source: MakeSource, samples: Samples
) -> None:
    source = make_source(samples.many(12))
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        app.tick()
        await pilot.pause()
        table = app.screen.query_one(StreamTable)
        assert table.display
        await pilot.press(*"jjjjj")
        assert table.chosen_id == "s-105"
        streams = source.shown.streams
        source.change(streams=tuple(msgspec.structs.replace(s, completion_tokens=7) for s in streams[2:]))
        app.tick()
        await pilot.pause()
        assert table.chosen_id == "s-105"
        assert table.row_count == 10
        assert str(table.get_cell("s-105", "decode/s")) == "45.0"
        source.change(streams=(samples.stream(id="first", session="f"), *source.shown.streams))
        app.tick()
        await pilot.pause()
        assert table.chosen_id == "s-105"
        assert table.row_count == 11
        await pilot.resize_terminal(200, 60)
        app.tick()
        await pilot.pause()
        assert table.chosen_id == "s-105"


async def test_a_click_chooses_a_row(make_app: MakeApp, make_source: MakeSource, samples: Samples) -> None:
    app = make_app(make_source(samples.many(12)))
    async with app.run_test(size=(120, 40)) as pilot:
        app.tick()
        await pilot.pause()
        await pilot.click("#home-table", offset=(5, 4))
        assert app.screen.query_one(StreamTable).cursor_row == 3


async def test_table_cells_take_the_colours_of_a_new_theme(
    make_app: MakeApp, make_source: MakeSource, samples: Samples
) -> None:
    app = make_app(make_source(samples.many(12)))
    async with app.run_test(size=(120, 40)) as pilot:
        app.tick()
        await pilot.pause()
        table = app.screen.query_one(StreamTable)
        dark = table.get_cell("s-100", "phase").style
        app.theme = "homebase-light"
        await pilot.pause()
        app.tick()
        assert table.get_cell("s-100", "phase").style != dark


@pytest.mark.parametrize("width", [60, 80, 100, 120, 144, 200])
def test_columns_fit_and_the_important_ones_stay(width: int) -> None:
    columns = choose_columns(width)
    assert sum(column.width + 2 for column in columns) <= width
    if width >= 80:
        assert {"id", "phase", "context", "of limit", "decode/s", "age"} <= {column.name for column in columns}


async def test_stopping_is_offered_only_for_what_runs(
    make_app: MakeApp, make_source: MakeSource, samples: Samples
) -> None:
    app = make_app(make_source(samples.engine_dead()))
    async with app.run_test(size=(120, 40)) as pilot:
        app.tick()
        await pilot.press("x")
        assert isinstance(app.screen, StreamsScreen)
        assert "x" not in app.screen.active_bindings


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("keys", [[], ["v"], ["enter"], ["2"]], ids=["bands", "table", "detail", "refusals"])
async def test_poison_names_neither_break_out_nor_shift_columns(
    make_app: MakeApp,
    make_source: MakeSource,
    samples: Samples,
    read_screen: Read,
    size: tuple[int, int],
    keys: list[str],
) -> None:
    source = make_source(samples.poison())
    source.publish(*reversed(source.shown.admission.recent_refusals))
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        await pilot.press(*keys)
        app.tick()
        await pilot.pause()
        text = read_screen(app)
        assert not any(sign in text for sign in "\x1b\x07\t\r\u202e\u200d")
        assert "evil\\x1b[2J" in text
        rows = text.splitlines()
        assert all(cell_len(row) <= size[0] for row in rows)
        if not keys:
            main = [set_cell_size(row, plan_home(*size).main_width) for row in rows]
            framed = [row for row in main if row.startswith(("┃", "│ "))]
            assert framed
            assert all(row.endswith(("┃", "│")) for row in framed)


async def test_a_policy_problem_is_in_sight_on_the_home_screen(
    make_app: MakeApp, make_source: MakeSource, samples: Samples, read_screen: Read
) -> None:
    snapshot = samples.one_decode()
    broken = msgspec.structs.replace(snapshot.policy, problem="homebase.toml:12: max_in_flight = 0 is not allowed")
    app = make_app(make_source(msgspec.structs.replace(snapshot, policy=broken)))
    async with app.run_test(size=(80, 24)) as pilot:
        app.tick()
        await pilot.pause()
        assert "✕ homebase.toml is not in force: homebase.toml:12" in read_screen(app)


async def test_the_chosen_row_of_the_table_is_marked_as_everywhere(make_app: MakeApp, source: FakeSource) -> None:
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("v")
        await pilot.pause()
        table = app.screen.query_one(StreamTable)
        assert table.has_focus
        marked = table.get_component_styles("datatable--cursor").background
        assert marked.hex.lower() == app.theme_variables["row-cursor"].lower()


async def test_the_key_bar_follows_streams_that_come_and_end(
    make_app: MakeApp, make_source: MakeSource, samples: Samples, read_screen: Read
) -> None:
    source = make_source(samples.empty())
    app = make_app(source)
    async with app.run_test(size=(120, 40)) as pilot:
        for streams, shown, hidden in (
            ((), "4 Log  e Limits", "Detail"),
            ((samples.stream(),), "⏎ Detail  x Stop", "Detail  e"),
            ((samples.finished(),), "⏎ Detail  e Limits", "Stop"),
            ((), "4 Log  e Limits", "Detail"),
        ):
            source.change(streams=streams)
            app.tick()
            await pilot.pause()
            bar = read_screen(app).splitlines()[-1]
            assert shown in bar
            assert hidden not in bar


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("state", ["nano", "parent_and_child", "many"])
async def test_a_warning_of_the_policy_is_in_sight_and_covers_nothing(
    make_app: MakeApp,
    make_source: MakeSource,
    samples: Samples,
    read_screen: Read,
    state: str,
    size: tuple[int, int],
) -> None:
    source = make_source(getattr(samples, state)())
    warning = "server.host 0.0.0.0 answers other machines too, and server.api_key is empty."
    source.state = msgspec.structs.replace(source.state, warnings=(warning,))
    app = make_app(source)
    async with app.run_test(size=size) as pilot:
        app.tick()
        await pilot.pause()
        rows = read_screen(app).splitlines()
        found = [row for row in rows if row.startswith(f" ▲ {warning}")]
        assert len(found) == 1
        assert "─ refused" in rows[rows.index(found[0]) + 1]
        assert rows[-1].startswith(" 1 Streams")


async def test_the_curl_line_asks_for_a_key_when_the_server_does(
    make_app: MakeApp, make_source: MakeSource, samples: Samples, read_screen: Read
) -> None:
    source = make_source(samples.nano())
    await source.save({"server.api_key": "s3cret"}, source.state.etag)
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        app.tick()
        await pilot.pause()
        text = read_screen(app)
        assert "Bearer $HOMEBASE_API_KEY" in text
        assert "s3cret" not in text


@pytest.mark.parametrize("state", ["draining", "stopped"])
async def test_leaving_states_say_so(
    make_app: MakeApp, make_source: MakeSource, samples: Samples, read_screen: Read, state: Any
) -> None:
    app = make_app(make_source(msgspec.structs.replace(samples.empty(), state=state)))
    async with app.run_test(size=(80, 24)) as pilot:
        app.tick()
        await pilot.pause()
        assert {"draining": "no new request is admitted", "stopped": "has stopped"}[state] in read_screen(app)


async def test_a_model_that_failed_says_why_and_what_next(
    make_app: MakeApp, make_source: MakeSource, samples: Samples, read_screen: Read
) -> None:
    failed = samples.model(state="failed", detail="model.embed_tokens.weight is missing")
    app = make_app(make_source(msgspec.structs.replace(samples.empty(), model=failed)))
    async with app.run_test(size=(80, 24)) as pilot:
        app.tick()
        await pilot.pause()
        text = read_screen(app)
        assert "The model could not be loaded." in text
        assert "model.embed_tokens.weight is missing" in text
        assert "[model] path" in text


async def test_keys_act_on_a_stream_in_flight_once_the_chosen_one_is_over(
    make_app: MakeApp, source: FakeSource, samples: Samples
) -> None:
    first, second = samples.stream(), samples.prefill_child()
    over = samples.stream(phase="finished", outcome="stop", finished_ago_s=1.0)
    source.shown = samples.snapshot(first)
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, StreamsScreen)

        async def show(*streams: StreamView) -> str | None:
            source.shown = samples.snapshot(*streams)
            app.tick()
            await pilot.pause()
            return screen.chosen.id if screen.chosen else None

        assert await show(over) == first.id
        assert await show(second, over) == second.id, "one begins"
        await pilot.press("up")
        assert await show(second, over) == over.id, "whoever chooses one that is over keeps it"
        await pilot.press("down")
        assert await show(second, first) == second.id
        await pilot.press("up")
        assert await show(second, over) == second.id, "the chosen one ends"
        await pilot.press("x")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmDialog)
