"""The wish to end a stream, as a message that the application answers."""

from __future__ import annotations

from textual.message import Message

from server.snapshot import StreamView


class StopStream(Message):
    """Posted when the operator asked to end a stream; nothing has happened yet."""

    def __init__(self, stream: StreamView) -> None:
        super().__init__()
        self.stream = stream
