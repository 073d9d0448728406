"""All streams as bands, one below the other, with one of them chosen. Keys live in the screen; clicks choose here."""

from __future__ import annotations

import msgspec
from textual import events
from textual.app import App
from textual.message import Message

from console.format import nice_max
from console.widgets.bands import BandPlace, BandStyle, band_lines, ended_line
from console.widgets.lines import Line, Lines
from console.widgets.phases import family, is_over
from server.snapshot import StreamView


class BandPlan(msgspec.Struct, frozen=True):
    """What fits: the style of bands for streams in flight, and whether ended ones get a band too."""

    style: BandStyle
    ended_as_bands: bool


MOST_BODY_ROWS = 9
"""A rate plot higher than this says no more."""
ENDED_ROWS = 2
"""Rows kept for streams that ended a moment ago and are told in one line each."""


class Drawing(msgspec.Struct, frozen=True):
    """What the terminal can show."""

    ascii: bool = False
    colours: bool = True

    @property
    def plain(self) -> bool:
        """True when parts of bars have to differ in shape."""
        return self.ascii or not self.colours


def read_drawing(app: App[object]) -> Drawing:
    """What the terminal of an app can show."""
    return Drawing(ascii=app.has_class("-ascii"), colours=not app.no_color)


def plan_bands(streams: tuple[StreamView, ...], rows: int, drawing: Drawing, least: int = 2) -> BandPlan | None:
    """The roomiest bands that fit `rows`, None when not even small ones do.

    Room is always counted for `least` bands and two ended streams, so that a band keeps its size while others come
    and go.
    """
    flying = sum(not is_over(stream) for stream in streams)
    count = max(least, flying)
    ended_as_bands = len(streams) <= count
    plain, top = drawing.plain, common_top(streams)
    room = (rows - ENDED_ROWS) // count
    if room >= 8:
        return BandPlan(BandStyle("big", min(MOST_BODY_ROWS, room - 5), top, plain, drawing.ascii), ended_as_bands)
    small = BandStyle("small", 3, top, plain, drawing.ascii)
    if rows // count >= small.height:
        return BandPlan(small, ended_as_bands)
    return BandPlan(small, False) if flying and rows // flying >= small.height else None


def common_top(streams: tuple[StreamView, ...]) -> float:
    """One scale for all decode plots."""
    return nice_max(max((max(stream.decode_history_tps, default=0.0) for stream in streams), default=0.0))


class BandView(Lines, can_focus=True):
    """The bands; `show_streams` draws them, a click chooses one, a second click opens it."""

    DEFAULT_CSS = """
    BandView { height: 1fr; }
    """

    class Chosen(Message):
        """A band was clicked."""

        def __init__(self, stream_id: str, opens: bool) -> None:
            super().__init__()
            self.stream_id = stream_id
            self.opens = opens
            """True when it was the chosen one already."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._owners: list[str] = []
        self._chosen: str | None = None
        self._drawn: object = None

    def show_streams(self, streams: tuple[StreamView, ...], plan: BandPlan, chosen: str | None, width: int) -> None:
        """Draw the streams as planned, unless exactly this is on the screen already."""
        wanted = (streams, plan, chosen, width)
        if wanted == self._drawn:
            return
        self._drawn, self._chosen = wanted, chosen
        lines: list[Line] = []
        self._owners = []
        rows = family(streams)
        for index, (depth, stream) in enumerate(rows):
            if is_over(stream) and not plan.ended_as_bands:
                continue
            place = BandPlace(
                width=width,
                depth=depth,
                is_chosen=stream.id == chosen,
                more_below=_follows_sibling(rows, index),
                has_child=index + 1 < len(rows) and rows[index + 1][0] > depth,
            )
            self._add(band_lines(stream, plan.style, place), stream.id, lines)
        if not plan.ended_as_bands:
            for _, stream in rows:
                if is_over(stream):
                    self._add([ended_line(stream, width)], stream.id, lines)
        self.show_lines(lines)

    def _add(self, block: list[Line], stream_id: str, lines: list[Line]) -> None:
        lines.extend(block)
        self._owners.extend([stream_id] * len(block))

    def show_text(self, lines: list[Line]) -> None:
        """Draw other words in the place of bands."""
        self._drawn, self._owners, self._chosen = None, [], None
        self.show_lines(lines)

    def on_click(self, event: events.Click) -> None:
        """Choose the band under the mouse."""
        if 0 <= event.y < len(self._owners):
            stream_id = self._owners[event.y]
            self.post_message(self.Chosen(stream_id, opens=stream_id == self._chosen))


def _follows_sibling(rows: tuple[tuple[int, StreamView], ...], index: int) -> bool:
    depth = rows[index][0]
    for later, _ in rows[index + 1 :]:
        if later < depth:
            return False
        if later == depth:
            return depth > 0
    return False
