"""What is shown while the terminal is too small for anything else. The server runs on."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from console.widgets.home_plan import LEAST_HEIGHT, LEAST_WIDTH
from console.widgets.lines import Line, Lines, fit_line
from console.widgets.title import STATE_WORDS
from server.snapshot import Snapshot


class SmallScreen(ModalScreen[None]):
    """Covers whatever was there; the application takes it away when there is room again."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,ctrl+q", "app.quit", "Quit", show=False)]

    DEFAULT_CSS = """
    SmallScreen { background: $background; }
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._snapshot = snapshot

    def compose(self) -> ComposeResult:
        """A few words."""
        yield Lines()

    def on_mount(self) -> None:
        """Say it."""
        self._draw()

    def on_resize(self) -> None:
        """Say the new size."""
        self._draw()

    def refresh_view(self, snapshot: Snapshot) -> None:
        """Follow the state of the server."""
        self._snapshot = snapshot
        self._draw()

    def _draw(self) -> None:
        width, height = self.app.size
        symbol, word, role = STATE_WORDS[self._snapshot.state]
        lines: list[Line] = [
            (("homebase ", "title-mark bold"), (f"{symbol} {word}", f"{role} bold")),
            ((f"needs {LEAST_WIDTH}x{LEAST_HEIGHT}, have {width}x{height}", "text-strong"),),
            (("The server runs on.", "text-muted"),),
        ]
        self.query_one(Lines).show_lines([fit_line(line, width) for line in lines[:height]])
