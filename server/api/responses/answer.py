"""What a response looks like on the wire: the whole object, and the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from server.api.generation.reply import Reply
from server.api.generation.transcript import Piece
from server.api.responses.output import Output
from server.api.responses.output_items import Event
from server.api.responses.resource import Resource, ResponseStatus
from server.api.sse import build_frame
from server.errors import HomebaseError, StreamStopped

Settle = Callable[[msgspec.Raw, Sequence[dict[str, Any]]], None]
"""Is given a response's last object, and the items of its output."""


class ResponsesAnswer:
    """Writes one response. Each event carries its number; the last one the whole object, as a client that does not
    stream gets it.
    """

    def __init__(self, resource: Resource, output: Output, settle: Settle) -> None:
        self._resource, self._output, self._settle = resource, output, settle
        self._sequence_number = 0

    def begin(self) -> bytes:
        """The object without output, twice: it is there, and it is being worked on."""
        return self._write(
            [("response.created", self._build_started()), ("response.in_progress", self._build_started())]
        )

    def add(self, pieces: Sequence[Piece]) -> bytes:
        """The events of each piece."""
        return self._write(event for piece in pieces for event in self._output.add(piece))

    def end(self, reply: Reply) -> bytes:
        """What ends the last item, and the whole object."""
        status: ResponseStatus = "incomplete" if reply.finish_reason == "length" else "completed"
        closing = self._write(self._output.close(status))
        return closing + self._write([(f"response.{status}", {"response": self._finish(status, reply)})])

    def fail(self, error: HomebaseError) -> bytes:
        """The object with the error and what there was of the output."""
        return self._write([("response.failed", {"response": self.finish_failed(error)})])

    def keep_alive(self) -> bytes:
        """An event, since this dialect's clients count those alone."""
        return self._write([("response.in_progress", self._build_started())])

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Collect the output; its events are not told."""
        for piece in pieces:
            for _ in self._output.add(piece):
                pass

    def build_whole(self, reply: Reply) -> bytes:
        """The whole object."""
        status: ResponseStatus = "incomplete" if reply.finish_reason == "length" else "completed"
        for _ in self._output.close(status):
            pass
        return bytes(self._finish(status, reply))

    def build_now(self) -> bytes:
        """The object while it is being worked on, with the output so far."""
        return bytes(self._resource.build("in_progress", self._output.build()))

    def finish_failed(self, error: HomebaseError) -> msgspec.Raw:
        """The last object of a response that did not come to its end."""
        self._output.cut()
        items = self._output.build()
        status: ResponseStatus = "cancelled" if isinstance(error, StreamStopped) else "failed"
        last = self._resource.build(status, items, error=error)
        self._settle(last, items)
        return last

    def _finish(self, status: ResponseStatus, reply: Reply) -> msgspec.Raw:
        items = self._output.build()
        completed_s = int(time.time()) if status == "completed" else None
        last = self._resource.build(status, items, usage=reply.usage, completed_s=completed_s)
        self._settle(last, items)
        return last

    def _build_started(self) -> dict[str, Any]:
        return {"response": self._resource.build("in_progress", [])}

    def _write(self, events: Iterable[Event]) -> bytes:
        return b"".join(self._build_event(name, fields) for name, fields in events)

    def _build_event(self, name: str, fields: dict[str, Any]) -> bytes:
        numbered = {"type": name, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return build_frame(msgspec.json.encode(numbered), name)
