"""The lines of the log: a window on a `Timeline` that follows its end or stays where the operator reads."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from console.format import cut, format_clock, pad
from console.timeline import Entry, Timeline
from console.widgets.lines import Line, Lines, Span, fit_line

_LEVEL_SIGNS = {
    "debug": ("·", "debug", "text-muted"),
    "info": ("●", "info", "state-ok"),
    "warning": ("▲", "warn", "state-warning"),
    "error": ("✕", "error", "state-error"),
}
SOURCE_WIDTH = 9
_WHEEL_ROWS = 3


def entry_line(entry: Entry, width: int, *, is_cursor: bool, needle: str = "") -> Line:
    """Time, level, source, text; what the filter looks for is underlined."""
    symbol, word, role = _LEVEL_SIGNS[entry.level]
    text_role = role if entry.level in ("warning", "error") else ""
    head: list[Span] = [
        ("▸" if is_cursor else " ", "accent-text bold"),
        (f"{format_clock(entry.time_s)} ", "text-muted"),
        (f"{symbol} {word:<6}", role),
        (f"{pad(entry.source, SOURCE_WIDTH)} ", "text-strong"),
    ]
    room = width - sum(cell_len(text) for text, _ in head)
    line = fit_line((*head, *_mark(cut(entry.text, room), needle, text_role)), width)
    return tuple((text, f"{role} on-row-cursor") for text, role in line) if is_cursor else line


def _mark(text: str, needle: str, role: str) -> list[Span]:
    start = text.casefold().find(needle) if needle else -1
    if start < 0 or len(text.casefold()) != len(text):
        return [(text, role)]
    end = start + len(needle)
    return [(text[:start], role), (text[start:end], f"{role} bold underline"), (text[end:], role)]


class LogView(Lines, can_focus=True):
    """Draws only the rows in sight; `update_view` after the timeline has changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="log.up", tooltip="One line up; stops following."),
        Binding("down,j", "move(1)", "Down", show=False, id="log.down", tooltip="One line down."),
        Binding("pageup,ctrl+u", "page(-1)", "Page up", show=False, id="log.pageup", tooltip="One screen up."),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="log.pagedown", tooltip="One screen down."),
        Binding("home,g", "move(-999999)", "First", show=False, id="log.first", tooltip="The oldest line kept."),
        Binding("end,G", "follow_end", "Newest", show=False, id="log.last", tooltip="The newest line, and follow."),
    ]

    DEFAULT_CSS = """
    LogView { height: 1fr; width: 1fr; }
    """

    class Moved(Message):
        """Another line is chosen, or following was switched."""

    def __init__(self, timeline: Timeline, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._timeline = timeline
        self._top = 0
        self._cursor = 0
        self._read_to = 0
        self.is_following = True
        """Whether the newest line is kept in sight."""

    @property
    def chosen(self) -> Entry | None:
        """The line under the cursor, None when nothing is shown."""
        shown = self._timeline.shown
        return shown[min(self._cursor, len(shown) - 1)] if shown else None

    @property
    def new_below(self) -> int:
        """Lines that came while not following and have not been in sight yet."""
        shown = self._timeline.shown
        count = 0
        while count < len(shown) and shown[-1 - count].sequence > self._read_to:
            count += 1
        return count

    def update_view(self, dropped: int = 0) -> None:
        """Draw again; `dropped` entries have fallen out before the window, which stays on what it showed."""
        shown, height = self._timeline.shown, max(1, self.size.height)
        last = len(shown) - 1
        self._cursor = last if self.is_following else max(0, min(self._cursor - dropped, last))
        highest_top = max(0, len(shown) - height)
        self._top = highest_top if self.is_following else max(0, min(self._top - dropped, highest_top))
        self._top = min(max(self._top, self._cursor - height + 1), max(self._cursor, 0))
        in_sight = shown[self._top : self._top + height]
        if in_sight:
            self._read_to = max(self._read_to, in_sight[-1].sequence)
        width = self.size.width
        self.show_lines(
            [
                entry_line(entry, width, is_cursor=self._top + y == self._cursor, needle=self._timeline.needle)
                for y, entry in enumerate(in_sight)
            ]
        )

    def restart_view(self, keep: Entry | None) -> None:
        """After the filter changed: stay on the kept entry, or on the nearest older one that is still shown."""
        shown = self._timeline.shown
        if keep is not None and not self.is_following:
            self._cursor = max(0, sum(1 for entry in shown if entry.sequence <= keep.sequence) - 1)
            self._top = max(0, self._cursor - self.size.height // 2)
        self.update_view()

    def on_resize(self, event: events.Resize) -> None:
        """Rows are built for a width, the window for a height."""
        self.update_view()

    def action_move(self, rows: int) -> None:
        """Move the cursor; upwards stops following, onto the newest line starts it."""
        last = len(self._timeline.shown) - 1
        self._cursor = min(max(self._cursor + rows, 0), max(last, 0))
        self.is_following = rows > 0 and self._cursor == last
        self.update_view()
        self.post_message(self.Moved())

    def action_page(self, pages: int) -> None:
        """Move by screens."""
        self.action_move(pages * max(1, self.size.height - 1))

    def action_follow_end(self) -> None:
        """Go to the newest line and stay with it."""
        self.is_following = True
        self.update_view()
        self.post_message(self.Moved())

    def toggle_following(self) -> None:
        """Stay here, or go to the end and stay with it."""
        self.is_following = not self.is_following
        self.update_view()
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """Choose the line under the mouse."""
        if self._top + event.y < len(self._timeline.shown):
            self.action_move(self._top + event.y - self._cursor)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves by a few lines."""
        event.stop()
        self.action_move(_WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves by a few lines."""
        event.stop()
        self.action_move(-_WHEEL_ROWS)
