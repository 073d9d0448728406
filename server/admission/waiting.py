"""Requests that wait for a place: each a future, settled by whoever gives places. Server loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from server.admission.decide import Asked
from server.admission.line import InLine

PermitT = TypeVar("PermitT")


@dataclass(slots=True)
class _Waiting(Generic[PermitT]):
    entry: InLine
    since_s: float
    permit: asyncio.Future[PermitT]


class Waiting(Generic[PermitT]):
    """The line. It holds no slot, and nobody in it is forgotten: each gets a permit, an error, or leaves by itself."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting[PermitT]] = {}
        self._arrived = 0

    @property
    def line(self) -> tuple[InLine, ...]:
        """Who waits, in the order of arrival."""
        return tuple(each.entry for each in self._waiting.values())

    def build_entry(self, asked: Asked) -> InLine:
        """The entry that one who comes now would have."""
        return InLine(self._arrived, asked)

    async def wait(
        self,
        asked: Asked,
        patience_s: float,
        give_up: Callable[[float], Exception],
        undo: Callable[[PermitT], object],
    ) -> PermitT:
        """Stand in line until `settle`, or raise what `fail` was given, or what `give_up` makes of the seconds waited.

        A task that is cancelled leaves at once; a permit that it was just given is undone.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting[PermitT](self.build_entry(asked), loop.time(), loop.create_future())
        self._arrived += 1
        self._waiting[waiting.entry.number] = waiting
        try:
            await asyncio.wait((waiting.permit,), timeout=patience_s)
        except asyncio.CancelledError:
            if waiting.permit.done() and waiting.permit.exception() is None:
                undo(waiting.permit.result())
            raise
        finally:
            self._waiting.pop(waiting.entry.number, None)
        if waiting.permit.done():
            return waiting.permit.result()
        raise give_up(loop.time() - waiting.since_s)

    def settle(self, number: int, permit: PermitT) -> None:
        """Let one in."""
        self._waiting.pop(number).permit.set_result(permit)

    def fail(self, number: int, error: Callable[[float], Exception]) -> None:
        """Send one away, with what `error` makes of the seconds it has waited."""
        waiting = self._waiting.pop(number)
        waiting.permit.set_exception(error(asyncio.get_running_loop().time() - waiting.since_s))
