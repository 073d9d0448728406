"""Keys one at a time: the next goes ahead when all that the one before it caused has been done.

Textual gives a key to the widget in focus as soon as it comes, but runs what is bound to it only after it has bubbled
up to the application. When keys arrive bunched, as they do over a slow ssh, a letter would overtake a Ctrl+U before
it, and what is typed for a screen that is being opened would go to the one underneath.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from textual import events
from textual.app import App
from textual.command import CommandPalette
from textual.widgets import Input

ORDERED = (events.Key, events.Paste, events.MouseDown, events.MouseUp)
"""What an operator does; moving the mouse does nothing by itself and never waits."""

LONGEST_WAIT_S = 5.0
"""Something that never comes to rest holds up each key for no longer than this. Opening the Policy screen took 1.2 s
on a machine with four times as much to do as it has cores."""

_CALM_TURNS = 4
"""Turns of the event loop without a message in any queue: a worker that was just begun gets to ask its question."""

_EAGER_TURNS = 200
_PAUSE_S = 0.002
"""After so many turns something is slow (a new screen, the search of the palette): then it is looked at less often."""


class KeyOrder:
    """Holds back input while an earlier one is still at work. Belongs to one application and its loop."""

    def __init__(self, app: App[object]) -> None:
        self._app = app
        self._waiting: deque[events.Event] = deque()
        self._admitted: deque[events.Event] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether what an input caused is still under way."""
        return self._task is not None

    def holds(self, event: events.Event) -> bool:
        """True when this event is not to be handled now: it is posted again when it is its turn."""
        if not isinstance(event, ORDERED) or event.is_forwarded:
            return False
        if self._admitted and event is self._admitted[0]:
            self._admitted.popleft()
            return False
        if self._task is None:
            self._task = asyncio.create_task(self._admit_in_turn())
            if self._is_open():
                return False
        self._waiting.append(event)
        return True

    async def _admit_in_turn(self) -> None:
        try:
            await self._rest()
            while self._waiting and self._app.is_running:
                self._admit()
                await self._rest()
        finally:
            self._task = None

    def _admit(self) -> None:
        """Let the next one go ahead; letters for a text field go together, for they cannot overtake each other."""
        is_typing = isinstance(self._app.focused, Input)
        while True:
            event = self._waiting.popleft()
            self._admitted.append(event)
            self._app.post_message(event)
            if not (is_typing and _is_letter(event) and self._waiting and _is_letter(self._waiting[0])):
                return

    async def _rest(self) -> None:
        """Wait until nothing that was begun by input is left to do."""
        until = time.monotonic() + LONGEST_WAIT_S
        calm = turns = 0
        while calm < _CALM_TURNS and self._app.is_running and time.monotonic() < until:
            turns += 1
            await asyncio.sleep(0 if turns < _EAGER_TURNS else _PAUSE_S)
            calm = calm + 1 if self._is_calm() else 0

    def _is_calm(self) -> bool:
        if not self._is_open() or self._app.message_queue_size or self._is_searching():
            return False
        nodes = (node for screen in self._app.screen_stack for node in screen.walk_children(with_self=True))
        return not any(node.message_queue_size for node in nodes)

    def _is_open(self) -> bool:
        """Whether the screen in front has its widgets."""
        stack = self._app.screen_stack
        return bool(stack) and stack[-1].is_mounted

    def _is_searching(self) -> bool:
        """Whether the palette still looks for what was typed: Enter would take a command that was found before."""
        screen = self._app.screen
        return isinstance(screen, CommandPalette) and any(
            worker.node is screen and not worker.is_finished for worker in self._app.workers
        )


def _is_letter(event: events.Event) -> bool:
    return isinstance(event, events.Key) and event.is_printable
