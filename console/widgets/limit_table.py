"""The list of all limits: a cursor, and a field that opens in the row under it."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.message import Message
from textual.widgets import Input

from console.editing import LIMITS, Editing, plan_step
from console.widgets.limit_field import LimitField
from console.widgets.limit_lines import DENSITIES, Row, choose_rows, field_span, list_lines
from console.widgets.lines import Lines

_KEYS = tuple(row.key for row in DENSITIES[-1] if row.key)
_PAGE = 8
"""Rows that Page Up and Page Down move: less than the shortest list shows, so that nothing is jumped over."""


class LimitTable(VerticalScroll, can_focus=True):
    """Shows an `Editing` and reports what the operator types; it decides nothing and keeps no draft."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,e", "edit", "Edit", key_display="⏎", id="policy.edit", tooltip="Type a value for this limit."),
        Binding(
            "escape", "close", "Keep, close", key_display="esc", id="policy.close", tooltip="Keep the text, not saved."
        ),
        Binding("right,plus", "step(1)", "Next value", show=False, id="policy.more", tooltip="The next value."),
        Binding("left,minus", "step(-1)", "Previous value", show=False, id="policy.less", tooltip="The value before."),
        Binding(
            "space", "switch", "Switch", show=False, id="policy.toggle", tooltip="Switch on or off, or next choice."
        ),
        Binding("up,k", "move(-1)", "Up", show=False, id="policy.up", tooltip="The limit above."),
        Binding("down,j", "move(1)", "Down", show=False, id="policy.down", tooltip="The limit below."),
        Binding("pageup", f"move(-{_PAGE})", "Page up", show=False, id="policy.pageup", tooltip="Some limits up."),
        Binding(
            "pagedown", f"move({_PAGE})", "Page down", show=False, id="policy.pagedown", tooltip="Some limits down."
        ),
        Binding("home,g", "move(-999)", "First limit", show=False, id="policy.first", tooltip="The first limit."),
        Binding("end,G", "move(999)", "Last limit", show=False, id="policy.last", tooltip="The last limit."),
    ]

    DEFAULT_CSS = """
    LimitTable { scrollbar-size-vertical: 1; }
    LimitTable > LimitField { position: absolute; display: none; }
    LimitTable > LimitField.-open { display: block; }
    """

    class Moved(Message):
        """The cursor is on another limit."""

    class NotHere(Message):
        """The limit under the cursor is edited in the file only."""

    class Typed(Message):
        """A limit has a new text."""

        def __init__(self, key: str, text: str) -> None:
            super().__init__()
            self.key, self.text = key, text

    def __init__(self, editing: Editing, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._editing = editing
        self._lines = Lines()
        self._field = LimitField()
        self.cursor_key = _KEYS[0]
        """The limit under the cursor."""

    def compose(self) -> ComposeResult:
        """The rows, and the field over them."""
        yield self._lines
        yield self._field

    @property
    def is_open(self) -> bool:
        """Whether a field is open."""
        return self._field.has_class("-open")

    def show_editing(self, editing: Editing) -> None:
        """Draw the limits and their drafts; an open field keeps what is in it."""
        self._editing = editing
        width = self.scrollable_content_region.width
        if width <= 0:
            return
        self._lines.show_lines(list_lines(editing, self._rows, self.cursor_key, width))
        if self.is_open:
            self._place_field(width)
            draft = editing.drafts.get(self.cursor_key)
            self._field.set_class(draft is not None and draft.problem is not None, "-wrong")

    def on_resize(self) -> None:
        """Rows are built for a width."""
        self.show_editing(self._editing)
        self._reveal()

    def watch_show_vertical_scrollbar(self) -> None:
        """A scrollbar takes a column from the rows that brought it, without a resize of this widget."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        self.show_editing(self._editing)

    def _place_field(self, width: int) -> None:
        start, room = field_span(self.cursor_key, width)
        self._field.styles.offset = (start, self._cursor_y)
        self._field.styles.width = room

    @property
    def _rows(self) -> tuple[Row, ...]:
        return choose_rows(self.size.height)

    @property
    def _cursor_y(self) -> int:
        return next(y for y, row in enumerate(self._rows) if row.key == self.cursor_key)

    def _reveal(self) -> None:
        y = self._cursor_y
        top = y - 1 if self._rows[y - 1].key == "" else y
        self.scroll_to_region(Region(0, top, 1, y - top + 1), animate=False, force=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Esc is ours only while a field is open; else it goes back, as everywhere."""
        return self.is_open if action == "close" else True

    def action_move(self, rows: int) -> None:
        """Move the cursor by limits, closing the field; its text stays a draft."""
        here = _KEYS.index(self.cursor_key)
        self.go_to(_KEYS[min(max(here + rows, 0), len(_KEYS) - 1)])

    def go_to(self, key: str) -> None:
        """Put the cursor on a limit."""
        self.action_close()
        self.cursor_key = key
        self.show_editing(self._editing)
        self._reveal()
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """One click moves the cursor, a click where it is edits."""
        y = (event.screen_offset - self._lines.region.offset).y
        if event.widget is self._field or not 0 <= y < len(self._rows) or not (key := self._rows[y].key):
            return
        if key == self.cursor_key:
            self.action_edit()
        else:
            self.go_to(key)

    def action_edit(self) -> None:
        """Open the field; yes-or-no and choices go to their next value instead, and tables have no field."""
        match LIMITS[self.cursor_key].kind:
            case "bool" | "choice":
                self.action_step(1)
            case "table":
                self.post_message(self.NotHere())
            case _:
                self._open_field()

    def _open_field(self) -> None:
        self._reveal()
        with self.prevent(Input.Changed):
            self._field.value = self._editing.text(self.cursor_key)
        self._field.password = LIMITS[self.cursor_key].secret
        self._field.add_class("-open")
        self._field.focus(scroll_visible=False)
        self.show_editing(self._editing)

    def action_close(self) -> None:
        """Close the field; what was typed stays as a draft."""
        if self.is_open:
            self._field.remove_class("-open")
            if self._field.has_focus:
                self.focus(scroll_visible=False)

    def action_switch(self) -> None:
        """The next of a few values; numbers are left alone."""
        if LIMITS[self.cursor_key].kind in ("bool", "choice"):
            self.action_step(1)

    def action_step(self, direction: int) -> None:
        """Go to the next or previous value, for limits whose values can be walked through."""
        text = plan_step(self.cursor_key, self._editing.text(self.cursor_key), direction)
        if text is not None and not self.is_open:
            self.post_message(self.Typed(self.cursor_key, text))

    @on(Input.Changed)
    def _report(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_open:
            self.post_message(self.Typed(self.cursor_key, event.value))

    @on(Input.Submitted)
    def _close_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_close()

    @on(events.DescendantBlur)
    def _close_left(self) -> None:
        # A terminal that loses its focus blurs the field too; then it stays open and gets the focus back.
        if self.is_open and self.app.app_focus:
            self._field.remove_class("-open")
