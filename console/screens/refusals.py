"""Every refusal that is remembered: when, why, who, the limit and its use, and the sentence that was sent."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import DataTable, Input

from console.actions import bindings_for
from console.format import cut, format_clock, format_count, safe_text, wrap_words
from console.source import Source
from console.widgets.copying import CopyText
from console.widgets.home_plan import is_too_small
from console.widgets.keybar import KeyBar
from console.widgets.lines import Line, Lines, plain_ascii, resolve_role
from console.widgets.refusal_lines import sent_words, use_words
from console.widgets.refusal_summary import refusal_facts, refusal_summary
from console.widgets.title import TitleLine
from server.events import Refused
from server.snapshot import Snapshot

MOST_ROWS = 500
"""As many as the server's ring keeps of one kind."""

_ABOUT = (
    "A request is refused before any work when no slot is free or the model is still loading; it appears here with "
    "who asked, which limit said no, and what the client was told."
)
_ABOUT_WIDTH = 90
"""Longer lines are hard to read."""

_COLUMNS: tuple[tuple[str, int, int], ...] = (
    ("time", 8, 0),
    ("code", 16, 0),
    ("client", 17, 0),
    ("lane", 9, 100),
    ("use", 8, 0),
    ("prompt", 9, 100),
    ("asked", 8, 120),
    ("sent", 18, 80),
    ("session", 22, 140),
)
"""Name, width, and the narrowest screen that has the column."""


_LEAST_CLIENT = 7


class RefusalsScreen(Screen[None]):
    """A table that grows at its top; the chosen row is told in full below."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("refusals")

    AUTO_FOCUS = "#refusal-table"

    DEFAULT_CSS = """
    RefusalsScreen { layout: vertical; }
    RefusalsScreen #refusal-summary { height: auto; padding: 0 0; }
    RefusalsScreen #refusal-filter { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    RefusalsScreen.-filtering #refusal-filter { display: block; }
    RefusalsScreen #refusal-table {
        height: 1fr; background: $background; scrollbar-size-vertical: 1; overflow-x: hidden;
        & > .datatable--header { background: $title-background; color: $text-muted; text-style: none; }
        & > .datatable--cursor { background: $row-cursor; color: $text-strong; text-style: bold; }
        & > .datatable--hover { background: $panel; }
        &:focus { background-tint: $foreground 0%; }
    }
    RefusalsScreen #refusal-empty { display: none; height: 1fr; }
    RefusalsScreen.-empty #refusal-table { display: none; }
    RefusalsScreen.-empty #refusal-empty { display: block; }
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._snapshot = source.snapshot()
        self._seen = 0
        self._refusals: list[tuple[int, Refused]] = []
        """Newest first, with their sequence numbers."""
        self._shape: tuple[tuple[str, int], ...] = ()
        self._shown: tuple[int, ...] = ()
        self._filter = ""

    def compose(self) -> ComposeResult:
        """Title, counts, filter, table, the chosen refusal in full, keys."""
        yield TitleLine("refusals")
        yield Lines(id="refusal-summary")
        field = Input(placeholder="part of a code, client, session or message", id="refusal-filter")
        field.cursor_blink = False
        yield field
        yield DataTable[Text](id="refusal-table", cursor_type="row", zebra_stripes=False)
        yield Lines(id="refusal-empty")
        yield Lines(id="refusal-facts")
        yield KeyBar()

    def on_mount(self) -> None:
        """Draw rows again when the theme changes."""
        self.app.theme_changed_signal.subscribe(self, self._follow_theme)

    def _follow_theme(self, _theme: Theme) -> None:
        self._shape = ()
        self.refresh_view(self._snapshot)

    def on_resize(self) -> None:
        """Fit the new size."""
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self.refresh_view(self._snapshot)

    def on_screen_resume(self) -> None:
        """Show now what happened meanwhile."""
        self.refresh_view(self._source.snapshot())

    def refresh_view(self, snapshot: Snapshot) -> None:
        """Take in new refusals and draw what changed."""
        self._snapshot = snapshot
        self._collect()
        if not (self.is_mounted and self.app.is_running) or is_too_small(*self.size):
            return
        width = self.size.width
        self.query_one(TitleLine).show(snapshot)
        shown = [entry for entry in self._refusals if _matches(entry[1], self._filter)]
        self.query_one("#refusal-summary", Lines).show_lines(
            refusal_summary([refused for _, refused in self._refusals], len(shown), snapshot, width)
        )
        self.set_class(not shown, "-empty")
        self.query_one("#refusal-empty", Lines).show_lines(self._empty_lines(snapshot))
        self._fill(shown, width)
        self._show_facts()

    def _collect(self) -> None:
        for entry in self._source.notices(self._seen):
            self._seen = max(self._seen, entry.sequence)
            if isinstance(entry.notice, Refused):
                self._refusals.insert(0, (entry.sequence, entry.notice))
        del self._refusals[MOST_ROWS:]

    def _empty_lines(self, snapshot: Snapshot) -> list[Line]:
        started = format_clock(snapshot.time_s - snapshot.uptime_s)
        blank: Line = (("", ""),)
        if self._filter and self._refusals:
            return [blank, ((f"  No refusal contains {safe_text(self._filter)!r}.", "text-strong"),)]
        return [
            blank,
            ((f"  Nothing refused since {started}.", "text-strong bold"),),
            *(((f"  {line}", "text-muted"),) for line in wrap_words(_ABOUT, min(self.size.width - 4, _ABOUT_WIDTH))),
        ]

    def _fill(self, shown: list[tuple[int, Refused]], width: int) -> None:
        table = self._table
        columns = _fit_columns([refused for _, refused in shown], width)
        numbers = tuple(number for number, _ in shown)
        if columns == self._shape and numbers == self._shown:
            return
        chosen, scroll_y = self._chosen_number, table.scroll_y
        added = len([number for number in numbers if number > max(self._shown, default=0)]) if self._shown else 0
        table.clear(columns=columns != self._shape)
        if columns != self._shape:
            for name, size in columns:
                table.add_column(name, key=name, width=size)
        self._shape, self._shown = columns, numbers
        for number, refused in shown:
            table.add_row(*(self._cell(refused, name, size) for name, size in columns), key=str(number))
        if chosen in numbers:
            table.move_cursor(row=numbers.index(chosen), animate=False, scroll=False)
        if scroll_y > 0:
            table.scroll_to(y=scroll_y + added, animate=False, force=True)

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#refusal-table", DataTable)

    def _cell(self, refused: Refused, name: str, width: int) -> Text:
        value = cut(_value(refused, name), width)
        role = "state-warning" if name == "code" else "accent-text" if name == "client" else ""
        shown = plain_ascii(value) if self.app.has_class("-ascii") else value
        justify = "right" if name in {"use", "prompt", "asked"} else "left"
        return Text(shown, style=resolve_role(role, self.app.theme_variables), justify=justify, no_wrap=True)

    @property
    def _chosen_number(self) -> int | None:
        row = self._table.cursor_row
        return self._shown[row] if 0 <= row < len(self._shown) else None

    @property
    def chosen(self) -> Refused | None:
        """The refusal under the cursor."""
        number = self._chosen_number
        return next((refused for n, refused in self._refusals if n == number), None)

    @on(DataTable.RowHighlighted)
    def _show_facts(self) -> None:
        chosen = self.chosen
        rows = 3 if self.size.height < 20 else 5 if self.size.height < 30 else 6
        lines = refusal_facts(chosen, self.size.width, rows) if chosen is not None else []
        self.query_one("#refusal-facts", Lines).show_lines(lines)

    def action_filter(self) -> None:
        """Open the filter."""
        self.add_class("-filtering")
        self.query_one(Input).focus()

    @on(Input.Changed, "#refusal-filter")
    def _apply_filter(self, event: Input.Changed) -> None:
        self._filter = event.value
        self.refresh_view(self._snapshot)

    @on(Input.Submitted, "#refusal-filter")
    def _leave_filter(self) -> None:
        self._table.focus()

    def action_back(self) -> None:
        """Drop the filter first, then go home."""
        if self.has_class("-filtering"):
            self.remove_class("-filtering")
            self.query_one(Input).value = ""
            self._table.focus()
            return
        self.app.switch_mode("streams")

    def action_copy_refusal(self) -> None:
        """Copy the sentence of the chosen refusal."""
        if self.chosen is not None:
            self.post_message(CopyText(self.chosen.message, "the refusal's message"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Copying needs a row."""
        return action != "copy_refusal" or bool(self._refusals)


def _fit_columns(shown: list[Refused], width: int) -> tuple[tuple[str, int], ...]:
    """Names and widths for a screen; a use that is long, as bytes are, takes from the client's name."""
    sizes = {name: size for name, size, least in _COLUMNS if width >= least}
    longer = max((len(use_words(refused)) for refused in shown), default=0) - sizes["use"]
    if longer > 0:
        sizes["use"] += longer
        sizes["client"] = max(_LEAST_CLIENT, sizes["client"] - longer)
    return tuple(sizes.items())


def _value(refused: Refused, name: str) -> str:
    values = {
        "time": format_clock(refused.time_s),
        "code": safe_text(refused.code),
        "client": safe_text(refused.client),
        "lane": refused.lane,
        "use": use_words(refused),
        "prompt": format_count(refused.prompt_tokens),
        "asked": format_count(refused.max_tokens),
        "sent": sent_words(refused).removeprefix("sent "),
        "session": safe_text(refused.session),
    }
    return values[name]


def _matches(refused: Refused, text: str) -> bool:
    wanted = text.strip().casefold()
    fields = (refused.code, refused.client, refused.session, refused.lane, refused.message)
    return not wanted or any(wanted in field.casefold() for field in fields)
