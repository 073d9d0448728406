"""Streams as a table, for when there are more than bands fit. Rows are matched by stream id, never cleared."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec
from rich.text import Text
from textual.binding import BindingType
from textual.theme import Theme
from textual.widgets import DataTable

from console.format import (
    cut,
    format_count,
    format_duration,
    format_rate,
    format_ratio,
    format_seconds,
    safe_text,
    short_id,
)
from console.widgets.context_bar import context_ratio
from console.widgets.lines import plain_ascii, resolve_role
from console.widgets.phases import family, is_over, is_stalling, phase_sign
from server.snapshot import StreamView


class Column(msgspec.Struct, frozen=True):
    """One column: what it says of a stream, and how long it stays when the screen gets narrower."""

    name: str
    width: int
    rank: int
    """Columns with a higher rank go first."""
    read: Callable[[StreamView], str]
    is_number: bool = True


def _phase(stream: StreamView) -> str:
    """Symbol and one or two words, all of which fit."""
    symbol, words, _ = phase_sign(stream)
    if stream.outcome is not None:
        words = stream.outcome
    elif is_stalling(stream):
        words = f"idle {format_duration(stream.idle_s)}"
    elif stream.queue_position is not None:
        words = f"no. {stream.queue_position} in line"
    return f"{symbol} {words}"


COLUMNS: tuple[Column, ...] = (
    Column("id", 8, 0, lambda s: short_id(s.id), is_number=False),
    Column("phase", 16, 0, _phase, is_number=False),
    Column("lane", 9, 0, lambda s: s.lane, is_number=False),
    Column("client", 16, 3, lambda s: safe_text(s.client), is_number=False),
    Column("context", 9, 0, lambda s: format_count(s.context_tokens)),
    Column("of limit", 8, 0, lambda s: format_ratio(context_ratio(s))),
    Column("cached", 9, 6, lambda s: format_count(s.cached_tokens)),
    Column("out", 7, 4, lambda s: format_count(s.completion_tokens)),
    Column("of", 7, 5, lambda s: format_count(s.max_tokens)),
    Column("prefill/s", 9, 2, lambda s: format_rate(s.prefill_tps)),
    Column("decode/s", 8, 0, lambda s: format_rate(s.decode_tps)),
    Column("TTFT", 7, 2, lambda s: format_seconds(s.ttft_s)),
    Column("age", 6, 0, lambda s: format_duration(s.age_s)),
    Column("session", 16, 7, lambda s: safe_text(s.session), is_number=False),
)


def choose_columns(width: int) -> tuple[Column, ...]:
    """The columns that fit `width` cells, in the order of the table."""
    room = width - 1
    kept: set[str] = set()
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if column.width + 2 <= room:
            kept.add(column.name)
            room -= column.width + 2
    return tuple(column for column in COLUMNS if column.name in kept)


class StreamTable(DataTable[Text]):
    """The table of streams; the cursor stays on its stream while others come and go."""

    BINDINGS: ClassVar[list[BindingType]] = []

    DEFAULT_CSS = """
    StreamTable { height: 1fr; background: $background; scrollbar-size-vertical: 1; }
    StreamTable > .datatable--header { background: $title-background; color: $text-muted; text-style: none; }
    StreamTable > .datatable--cursor,
    StreamTable:focus > .datatable--cursor { background: $row-cursor; color: $text-strong; text-style: bold; }
    StreamTable > .datatable--hover { background: $panel; }
    StreamTable:focus { background-tint: $foreground 0%; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False, cell_padding=1)
        self._shape: tuple[str, ...] = ()
        self._values: dict[str, tuple[str, ...]] = {}

    def on_mount(self) -> None:
        """Draw all cells again when the theme changes."""
        self.app.theme_changed_signal.subscribe(self, self._follow_theme)

    def _follow_theme(self, _theme: Theme) -> None:
        self._values = dict.fromkeys(self._values, ())

    def show_streams(self, streams: tuple[StreamView, ...], width: int) -> None:
        """Add, change and remove rows so that the table shows these streams."""
        columns = choose_columns(width)
        rows = {stream.id: stream for _, stream in family(streams)}
        chosen = self.chosen_id
        kept = [key for key in self._values if key in rows]
        if tuple(column.name for column in columns) != self._shape or list(rows)[: len(kept)] != kept:
            self._rebuild(columns)
        for gone in [key for key in self._values if key not in rows]:
            self.remove_row(gone)
            del self._values[gone]
        for stream in rows.values():
            self._put(stream, columns)
        if chosen is not None and chosen != self.chosen_id:
            self.choose(chosen)

    def _rebuild(self, columns: tuple[Column, ...]) -> None:
        self.clear(columns=True)
        self._shape, self._values = tuple(column.name for column in columns), {}
        for column in columns:
            head = Text(column.name, justify="right" if column.is_number else "left")
            self.add_column(head, key=column.name, width=column.width)

    def _put(self, stream: StreamView, columns: tuple[Column, ...]) -> None:
        values = (stream.phase, *(column.read(stream) for column in columns))
        before = self._values.get(stream.id)
        if before == values:
            return
        cells = [self._cell(stream, column) for column in columns]
        if before is None:
            self.add_row(*cells, key=stream.id)
        else:
            for i, (column, cell) in enumerate(zip(columns, cells, strict=True)):
                if len(before) != len(values) or before[i + 1] != values[i + 1] or before[0] != values[0]:
                    self.update_cell(stream.id, column.name, cell)
        self._values[stream.id] = values

    def _cell(self, stream: StreamView, column: Column) -> Text:
        text = cut(column.read(stream), column.width)
        if self.app.has_class("-ascii"):
            text = plain_ascii(text)
        role = phase_sign(stream)[2] if column.name == "phase" else "state-finished" if is_over(stream) else ""
        style = resolve_role(role, self.app.theme_variables)
        return Text(text, style=style, justify="right" if column.is_number else "left", no_wrap=True)

    @property
    def chosen_id(self) -> str | None:
        """The stream under the cursor, None in an empty table."""
        if not self.is_valid_coordinate(self.cursor_coordinate):
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def choose(self, stream_id: str) -> None:
        """Put the cursor on a stream; unknown ids change nothing."""
        if stream_id in self._values:
            self.move_cursor(row=self.get_row_index(stream_id), animate=False)
