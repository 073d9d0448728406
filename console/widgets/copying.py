"""The wish to copy a text, as a message that the application answers."""

from __future__ import annotations

from textual.message import Message


class CopyText(Message):
    """Posted when the operator asked for a text on the clipboard; `what` names it in words."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__()
        self.text = text
        self.what = what
