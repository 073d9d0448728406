"""What the server, the engine and the console had to say, newest at the end."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Input

from console.format import count_noun, cut, format_clock
from console.source import Source
from console.timeline import LEVELS, Timeline
from console.widgets.copying import CopyText
from console.widgets.keybar import KeyBar
from console.widgets.limit_lines import wrap
from console.widgets.lines import Line, Lines, Span, split_ends
from console.widgets.log_view import LogView
from console.widgets.title import TitleLine
from server.snapshot import Snapshot

_CHOSEN_ROWS = 4
"""Rows for the whole text of the chosen line: a refusal's sentence on a terminal of 80 columns."""


class LogScreen(Screen[None]):
    """Notices of every kind in one timeline; a tick costs only what is new."""

    AUTO_FOCUS = "LogView"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash",
            "filter",
            "Filter",
            key_display="/",
            id="log.filter",
            tooltip="Show only lines that contain a text.",
        ),
        Binding("l", "next_level", "Level", id="log.level", tooltip="Show graver lines only, and round to all."),
        Binding("f", "toggle_following", "Follow", id="log.follow", tooltip="Keep the newest line in sight, or stay."),
        Binding("y,c", "copy", "Copy line", id="log.copy", tooltip="Copy the chosen line."),
        Binding("escape,h", "back", "Back", show=False, id="log.back", tooltip="Drop the filter; then the streams."),
    ]

    DEFAULT_CSS = """
    LogScreen { layout: vertical; }
    LogScreen #log-head { height: 1; }
    LogScreen .log-panel { border: round $band-border; border-title-color: $text-strong; }
    LogScreen .log-panel:focus-within { border: heavy $band-selected; }
    LogScreen.-ascii .log-panel, LogScreen.-ascii .log-panel:focus-within { border: ascii $band-border; }
    LogScreen #log-lines { height: 1fr; }
    LogScreen #log-chosen { height: 4; padding: 0 1; }
    LogScreen #log-filter {
        display: none; height: 1; border: none; padding: 0 1; background: $panel; color: $foreground;
        &.-open { display: block; }
        &:focus { border: none; background-tint: transparent; }
    }
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._timeline = Timeline()
        self._view = LogView(self._timeline)

    def compose(self) -> ComposeResult:
        """Title, head, lines, the whole text of the chosen line, filter."""
        yield TitleLine("log")
        yield Lines(id="log-head")
        with Vertical(id="log-lines", classes="log-panel") as panel:
            panel.border_title = "log"
            yield self._view
        yield Lines(id="log-chosen")
        filter_input = Input(
            placeholder="text to look for; Enter keeps it, Esc drops it", compact=True, id="log-filter"
        )
        filter_input.cursor_blink = False
        yield filter_input
        yield KeyBar()

    def on_mount(self) -> None:
        """Take in what was kept before this screen was opened."""
        self.set_class(self.app.has_class("-ascii"), "-ascii")
        self.call_after_refresh(self.refresh_view, self._source.snapshot())

    def on_screen_resume(self) -> None:
        """Shown again: catch up."""
        self.call_after_refresh(self.refresh_view, self._source.snapshot())

    def on_resize(self, event: events.Resize) -> None:
        """Lines are built for a width, which is known after the layout."""
        self.call_after_refresh(self._draw_around)

    def refresh_view(self, snapshot: Snapshot) -> None:
        """Append what is new."""
        self.query_one(TitleLine).show(snapshot)
        notices = self._source.notices(self._timeline.seen_sequence)
        if notices:
            self._view.update_view(self._timeline.add(notices))
        self._draw_around()

    def _draw_around(self) -> None:
        head = self.query_one("#log-head", Lines)
        head.show_lines([self._head_line(head.size.width)])
        self._draw_chosen()

    def _head_line(self, width: int) -> Line:
        timeline, view = self._timeline, self._view
        graver = "all levels" if timeline.level == "debug" else f"{timeline.level} and graver"
        left: list[Span] = [
            (f" {count_noun(len(timeline.shown), 'line')}", "text-strong"),
            (f"  {graver}", "text-muted"),
        ]
        if timeline.needle:
            left.append((f"  / {self._needle_text}", "accent-text bold"))
        if (hidden := timeline.total - len(timeline.shown)) > 0:
            left.append((f"  {hidden:,} hidden", "text-muted"))
        if view.is_following:
            right: Line = (("● following ", "state-ok"),)
        elif new := view.new_below:
            right = ((f"▲ {new:,} new {'line' if new == 1 else 'lines'} below ↓ G ", "state-warning bold"),)
        else:
            right = (("◌ not following ", "state-waiting"),)
        return split_ends(tuple(left), right, width)

    @property
    def _needle_text(self) -> str:
        return self.query_one("#log-filter", Input).value

    def _draw_chosen(self) -> None:
        panel = self.query_one("#log-chosen", Lines)
        entry, width = self._view.chosen, max(20, panel.size.width)
        if entry is not None:
            text = f"{format_clock(entry.time_s)} {entry.source}: {entry.text}"
            lines = wrap(text, width, "text-strong")
            if len(lines) > _CHOSEN_ROWS:
                lines[_CHOSEN_ROWS - 1 :] = [((cut(lines[_CHOSEN_ROWS - 1][0][0], width - 2) + " …", "text-strong"),)]
            panel.show_lines(lines)
        elif self._timeline.total:
            panel.show_lines(wrap("No line passes the filter. Esc drops it, l shows more levels.", width, "text-muted"))
        else:
            panel.show_lines(
                wrap("Nothing logged yet. Refusals, ended streams and saved limits appear here.", width, "text-muted")
            )

    @on(LogView.Moved)
    def _follow_cursor(self) -> None:
        self._draw_around()

    def action_toggle_following(self) -> None:
        """Follow the end, or stay."""
        self._view.toggle_following()

    def action_next_level(self) -> None:
        """Show graver lines only; after the gravest, all."""
        following = LEVELS[(LEVELS.index(self._timeline.level) + 1) % len(LEVELS)]
        keep = self._view.chosen
        self._timeline.set_filter(level=following)
        self._view.restart_view(keep)
        self._draw_around()

    def action_filter(self) -> None:
        """Open the line in which a text to look for is typed."""
        field = self.query_one("#log-filter", Input)
        field.add_class("-open")
        field.focus()

    @on(Input.Changed, "#log-filter")
    def _apply_filter(self, event: Input.Changed) -> None:
        keep = self._view.chosen
        self._timeline.set_filter(needle=event.value)
        self._view.restart_view(keep)
        self._draw_around()

    @on(Input.Submitted, "#log-filter")
    def _keep_filter(self) -> None:
        self.query_one("#log-filter", Input).remove_class("-open")
        self._view.focus()

    def action_back(self) -> None:
        """Close and drop the filter; without one go back to the streams."""
        field = self.query_one("#log-filter", Input)
        if field.has_class("-open") or field.value:
            field.value = ""
            field.remove_class("-open")
            self._view.focus()
        else:
            self.app.switch_mode("streams")

    def action_copy(self) -> None:
        """Copy the chosen line."""
        if (entry := self._view.chosen) is not None:
            line = f"{format_clock(entry.time_s)} {entry.level} {entry.source}: {entry.text}"
            self.post_message(CopyText(line, "The line"))
