"""The home screen: gauges, rates, the streams in flight as bands, and the last refusals."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import DataTable

from console.actions import bindings_for
from console.screens.detail import DetailScreen
from console.source import Source
from console.widgets.band_view import BandPlan, BandView, Drawing, plan_bands, read_drawing
from console.widgets.gauges import gauge_lines
from console.widgets.home_plan import HomePlan, is_too_small, plan_home
from console.widgets.keybar import KeyBar
from console.widgets.lines import Line, Lines
from console.widgets.phases import family, is_over
from console.widgets.plot import PlotSize, beside, plot_block
from console.widgets.refusal_lines import refusal_lines
from console.widgets.stop import StopStream
from console.widgets.stream_detail import detail_lines, server_lines
from console.widgets.stream_table import StreamTable
from console.widgets.title import TitleLine, read_clock
from console.widgets.words import empty_lines, notice_lines
from server.snapshot import Snapshot, StreamView


class StreamsScreen(Screen[None]):
    """Draws the newest snapshot; all it keeps is which stream is chosen and how streams are shown."""

    AUTO_FOCUS = "BandView"

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("streams")

    DEFAULT_CSS = """
    StreamsScreen { layout: vertical; }
    StreamsScreen #home { height: 1fr; }
    StreamsScreen #home-main { width: 1fr; }
    StreamsScreen #home-gauges, StreamsScreen #home-plots { height: auto; }
    StreamsScreen.-air #home-gauges { margin-top: 1; }
    StreamsScreen.-air #home-plots { margin-top: 1; }
    StreamsScreen.-air #home-streams { margin-top: 1; }
    StreamsScreen #home-streams { height: 1fr; }
    StreamsScreen #home-table { display: none; }
    StreamsScreen.-table #home-table { display: block; }
    StreamsScreen.-table #home-bands { display: none; }
    StreamsScreen #home-panel { display: none; width: 56; padding: 0 2 0 2; border-left: solid $band-border; }
    StreamsScreen.-panel #home-panel { display: block; height: 1fr; }
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._snapshot = source.snapshot()
        self._chosen: str | None = None
        self._in_flight: frozenset[str] = frozenset()
        """Streams in flight when this was last drawn."""
        self._wants_table = False
        self._possible: tuple[bool, ...] = ()
        """What the key bar was told about what can be done."""

    def compose(self) -> ComposeResult:
        """Title, gauges, plots, streams, notice, refusals, keys; at the right the panel of wide terminals."""
        yield TitleLine()
        with Horizontal(id="home"):
            with Vertical(id="home-main"):
                yield Lines(id="home-gauges")
                yield Lines(id="home-plots")
                with Vertical(id="home-streams"):
                    yield BandView(id="home-bands")
                    yield StreamTable(id="home-table")
                yield Lines(id="home-notice")
                yield Lines(id="home-refusals")
            yield Lines(id="home-panel")
        yield KeyBar()

    def on_resize(self) -> None:
        """Share the rows anew."""
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self.refresh_view(self._snapshot)

    def on_screen_resume(self) -> None:
        """Show now what happened meanwhile."""
        self.refresh_view(self._source.snapshot())

    def refresh_view(self, snapshot: Snapshot) -> None:
        """Draw a snapshot; parts that are equal are not drawn again."""
        self._snapshot = snapshot
        if not (self.is_mounted and self.app.is_running) or is_too_small(*self.size):
            return
        width, height = self.size
        plan = plan_home(width, height)
        self._keep_choice(snapshot.streams)
        with self.app.batch_update():
            self.set_class(plan.air, "-air")
            self.set_class(bool(plan.panel_width), "-panel")
            self.query_one(TitleLine).show(snapshot)
            self._show("home-gauges", gauge_lines(snapshot, plan.main_width, plan.gauge_rows))
            self._show("home-plots", _plots(snapshot, plan))
            warnings = self._source.policy().warnings
            notices = notice_lines(snapshot, warnings, read_clock(self.app), plan.main_width, plan.notice_rows)
            self._show("home-notice", notices)
            self._show("home-refusals", refusal_lines(snapshot, plan.main_width, plan.refusal_rows))
            rows = height - plan.fixed_rows - len(notices)
            self._show_streams(snapshot, plan, rows)
            if plan.panel_width:
                self._show_panel(snapshot, plan, height - 2)
        possible = tuple(bool(self.check_action(action, ())) for action in ("open_stream", "stop_stream"))
        if possible != self._possible:
            self._possible = possible
            self.refresh_bindings()

    def _show(self, id: str, lines: list[Line]) -> None:
        self.query_one(f"#{id}", Lines).show_lines(lines)

    def _show_streams(self, snapshot: Snapshot, plan: HomePlan, rows: int) -> None:
        bands = self.query_one(BandView)
        fitting = plan_bands(snapshot.streams, rows, self._drawing)
        table = bool(snapshot.streams) and (self._wants_table or fitting is None)
        self._set_table(table)
        if not snapshot.streams:
            asks_key = self._source.policy().policy.server.wants_key
            bands.show_text(empty_lines(snapshot, asks_key, plan.main_width, rows))
        elif table:
            self.query_one(StreamTable).show_streams(snapshot.streams, plan.main_width)
        else:
            self._show_bands(snapshot.streams, fitting, plan.main_width)

    @property
    def _drawing(self) -> Drawing:
        return read_drawing(self.app)

    def _show_bands(self, streams: tuple[StreamView, ...], fitting: BandPlan | None, width: int) -> None:
        if fitting is not None:
            self.query_one(BandView).show_streams(streams, fitting, self._chosen, width)

    def _set_table(self, table: bool) -> None:
        if self.has_class("-table") == table:
            return
        self.set_class(table, "-table")
        grid = self.query_one(StreamTable)
        if table:
            grid.show_streams(self._snapshot.streams, plan_home(*self.size).main_width)
            if self._chosen is not None:
                grid.choose(self._chosen)
        target = grid if table else self.query_one(BandView)
        if self.app.screen is self:
            self.call_after_refresh(target.focus)

    def _show_panel(self, snapshot: Snapshot, plan: HomePlan, rows: int) -> None:
        stream = self.chosen
        width = plan.panel_width - 5
        server = server_lines(snapshot, width)
        blank: Line = (("", ""),)
        if stream is None:
            self._show("home-panel", [blank, *server])
            return
        room = rows - len(server) - 2
        detail = detail_lines(stream, width, room, self._drawing.plain)
        self._show("home-panel", [blank, *detail, *[blank] * max(1, room - len(detail) + 1), *server][:rows])

    def _keep_choice(self, streams: tuple[StreamView, ...]) -> None:
        """The same stream as before; one in flight when that has just ended, or when it is over and another begins.

        Keys would else act on what is over, and a stream that runs could not be stopped at once.
        """
        before, self._in_flight = self._in_flight, frozenset(stream.id for stream in streams if not is_over(stream))
        order = [stream.id for _, stream in family(streams)]
        running = [id for id in order if id in self._in_flight]
        if self._chosen not in order:
            self._chosen = next(iter(running or order), None)
        elif running and self._chosen not in running and (self._chosen in before or self._in_flight - before):
            self._chosen = running[0]

    @property
    def chosen(self) -> StreamView | None:
        """The stream that keys act on."""
        return next((stream for stream in self._snapshot.streams if stream.id == self._chosen), None)

    def action_move(self, step: int) -> None:
        """Choose another stream."""
        order = [stream.id for _, stream in family(self._snapshot.streams)]
        if not order:
            return
        at = order.index(self._chosen) if self._chosen in order else 0
        self._choose(order[max(0, min(len(order) - 1, at + step))])

    def _choose(self, stream_id: str) -> None:
        self._chosen = stream_id
        if self.has_class("-table"):
            self.query_one(StreamTable).choose(stream_id)
        self.refresh_view(self._snapshot)
        self.refresh_bindings()

    @on(DataTable.RowHighlighted)
    def _follow_cursor(self, event: DataTable.RowHighlighted) -> None:
        if self.has_class("-table") and event.row_key.value is not None:
            self._chosen = event.row_key.value
            self.refresh_bindings()

    @on(DataTable.RowSelected)
    def _open_row(self) -> None:
        self.action_open_stream()

    @on(BandView.Chosen)
    def _follow_click(self, event: BandView.Chosen) -> None:
        self._choose(event.stream_id)
        if event.opens:
            self.action_open_stream()

    def action_open_stream(self) -> None:
        """Show everything about the chosen stream."""
        stream = self.chosen
        if stream is not None:
            self.app.push_screen(DetailScreen(self._source, stream))

    def action_toggle_table(self) -> None:
        """Bands or table."""
        self._wants_table = not self._wants_table
        self.refresh_view(self._snapshot)

    def action_stop_stream(self) -> None:
        """Ask, then end the chosen stream."""
        stream = self.chosen
        if stream is not None and not is_over(stream):
            self.post_message(StopStream(stream))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what is possible now is bound."""
        if action == "stop_stream":
            return self.chosen is not None and not is_over(self.chosen)
        if action in {"open_stream", "toggle_table"}:
            return bool(self._snapshot.streams)
        return True


def _plots(snapshot: Snapshot, plan: HomePlan) -> list[Line]:
    if not plan.plot_rows:
        return []
    rates = snapshot.rates
    left = (plan.main_width - 3) // 2
    right = plan.main_width - left - 3
    size = PlotSize(left, plan.plot_rows)
    decode = plot_block(" decode", rates.decode_history_tps, rates.decode_tps, size, "state-decode")
    size = PlotSize(right, plan.plot_rows)
    prefill = plot_block("prefill", rates.prefill_history_tps, rates.prefill_tps, size, "state-prefill")
    return beside(decode, prefill, left, 3)
