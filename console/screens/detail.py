"""One stream with everything known of it, on the whole screen; it stays after its end until it is left."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen

from console.actions import bindings_for
from console.source import Source
from console.widgets.band_view import read_drawing
from console.widgets.home_plan import is_too_small
from console.widgets.keybar import KeyBar
from console.widgets.lines import Line, Lines
from console.widgets.phases import family, is_over
from console.widgets.stop import StopStream
from console.widgets.stream_detail import detail_lines, server_lines
from console.widgets.title import TitleLine
from server.snapshot import Snapshot, StreamView


class DetailScreen(Screen[None]):
    """Follows one stream by its id."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("detail")

    AUTO_FOCUS = "#detail-scroll"

    DEFAULT_CSS = """
    DetailScreen #detail-scroll { height: 1fr; padding: 1 2; scrollbar-size-vertical: 1; }
    DetailScreen #detail-lines { height: auto; }
    """

    def __init__(self, source: Source, stream: StreamView) -> None:
        super().__init__()
        self._source = source
        self._stream = stream
        self._snapshot = source.snapshot()

    def compose(self) -> ComposeResult:
        """Title, facts, keys."""
        yield TitleLine("stream")
        with VerticalScroll(id="detail-scroll"):
            yield Lines(id="detail-lines")
        yield KeyBar()

    @property
    def stream(self) -> StreamView:
        """The stream as last seen."""
        return self._stream

    def on_resize(self) -> None:
        """Fit the new size."""
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self.refresh_view(self._snapshot)

    def refresh_view(self, snapshot: Snapshot) -> None:
        """Draw the stream as it is in the snapshot, or as it was when it left it."""
        self._snapshot = snapshot
        seen = next((stream for stream in snapshot.streams if stream.id == self._stream.id), None)
        if seen is None and not is_over(self._stream):
            seen = msgspec.structs.replace(self._stream, phase="finished")
        before, self._stream = self._stream, seen or self._stream
        if not (self.is_mounted and self.app.is_running) or is_too_small(*self.size):
            return
        self.query_one(TitleLine).show(snapshot)
        self.query_one("#detail-lines", Lines).show_lines(self._lines(snapshot))
        if is_over(before) != is_over(self._stream):
            self.refresh_bindings()

    def _lines(self, snapshot: Snapshot) -> list[Line]:
        width, height, plain = self.size.width - 5, self.size.height - 4, read_drawing(self.app).plain
        if self.size.width < 100:
            return detail_lines(self._stream, width, height, plain)
        left = max(56, (width - 4) * 3 // 5)
        facts = detail_lines(self._stream, left, height, plain)
        server = server_lines(snapshot, width - left - 4)
        blank: Line = ((" " * left, ""),)
        rows = max(len(facts), len(server))
        return [
            (*(facts[i] if i < len(facts) else blank), ("    ", ""), *(server[i] if i < len(server) else ()))
            for i in range(rows)
        ]

    def action_back(self) -> None:
        """Leave."""
        self.dismiss()

    def action_step(self, step: int) -> None:
        """Show another stream."""
        order = [stream for _, stream in family(self._snapshot.streams)]
        at = next((i for i, stream in enumerate(order) if stream.id == self._stream.id), None)
        if at is not None:
            self._stream = order[max(0, min(len(order) - 1, at + step))]
            self.refresh_view(self._snapshot)
            self.refresh_bindings()

    def action_stop_stream(self) -> None:
        """Ask, then end it."""
        if not is_over(self._stream):
            self.post_message(StopStream(self._stream))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A stream that is over cannot be stopped."""
        return not (action == "stop_stream" and is_over(self._stream))
