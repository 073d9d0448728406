"""What every dialect does with an answer: the one thing in which they differ, as an interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.api.generation.reply import Reply
from server.api.generation.transcript import Piece
from server.errors import HomebaseError


class Answer(Protocol):
    """Writes one answer in its dialect. Each method gives the bytes to send now; none for nothing."""

    def begin(self) -> bytes:
        """The first event of a stream, sent as soon as the request is admitted."""
        ...

    def add(self, pieces: Sequence[Piece]) -> bytes:
        """What the answer has grown by."""
        ...

    def end(self, reply: Reply) -> bytes:
        """The last events of a stream that went well."""
        ...

    def fail(self, error: HomebaseError) -> bytes:
        """The last event of a stream that did not."""
        ...

    def keep_alive(self) -> bytes:
        """What is sent when there is nothing else for a while: whatever this dialect's clients count as life."""
        ...

    def keep(self, pieces: Sequence[Piece]) -> None:
        """What an answer that is not streamed has grown by: for what is better written at once than at the end."""
        ...

    def build_whole(self, reply: Reply) -> bytes:
        """The whole answer at once, for a request that does not stream; `reply` is complete."""
        ...
