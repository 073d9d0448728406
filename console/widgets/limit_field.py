"""The one line in which a limit is typed: what is typed or pasted is kept exactly, or refused with a sentence."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import Input


class LimitField(Input):
    """A bare input that never rewrites its text. Textual keeps the first line of a paste; this refuses several."""

    DEFAULT_CSS = """
    LimitField {
        height: 1; padding: 0; border: none; background: $panel-lighten-2; color: $foreground;
        &:focus { border: none; background-tint: transparent; }
        &.-wrong { color: $text-error; text-style: bold; }
    }
    """

    class PasteRefused(Message):
        """Several lines were pasted where one is wanted; nothing was inserted."""

        def __init__(self, lines: int) -> None:
            super().__init__()
            self.lines = lines

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=True)
        self.cursor_blink = False

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.insert_pasted(event.text)

    def action_paste(self) -> None:
        """Insert what was copied inside this program, by the same rule."""
        self.insert_pasted(self.app.clipboard)

    def insert_pasted(self, text: str) -> None:
        """Put one pasted line where the cursor or the selection is; its line ending is no part of it."""
        lines = text.splitlines()
        if len(lines) > 1:
            self.post_message(self.PasteRefused(len(lines)))
        elif lines:
            self.replace(lines[0], *self.selection)
