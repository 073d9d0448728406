"""The command palette: every action by name in families, and commands for the streams and themes there are now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Protocol, cast

import msgspec
from textual.command import DiscoveryHit, Hit, Hits, Provider

from console.actions import ACTIONS
from console.format import safe_text, short_id
from console.source import Source
from console.widgets.phases import is_over
from console.widgets.stop import StopStream


class Console(Protocol):
    """What commands need of the application."""

    source: Source

    @property
    def theme_names(self) -> tuple[str, ...]:
        """The themes that can be chosen."""
        ...

    def use_theme(self, name: str) -> None:
        """Take a theme and keep it."""
        ...


class Command(msgspec.Struct, frozen=True):
    """One line of the palette."""

    name: str
    help: str
    run: Callable[[], object | Awaitable[object]]


class ConsoleCommands(Provider):
    """Commands that are possible on the screen underneath; the others are left out."""

    async def discover(self) -> Hits:
        """Everything, before a letter is typed."""
        for command in self._commands():
            yield DiscoveryHit(command.name, command.run, help=command.help)

    async def search(self, query: str) -> Hits:
        """What matches the typed letters."""
        matcher = self.matcher(query)
        for command in self._commands():
            score = matcher.match(command.name)
            if score > 0:
                yield Hit(score, matcher.highlight(command.name), command.run, help=command.help)

    @property
    def _console(self) -> Console:
        return cast("Console", self.app)

    def _commands(self) -> Iterator[Command]:
        yield from self._from_bindings()
        yield from self._for_streams()
        for theme in sorted(self._console.theme_names):
            yield Command(f"theme: {theme}", "Use this theme and keep it.", partial(self._console.use_theme, theme))

    def _from_bindings(self) -> Iterator[Command]:
        named = {action.id: action for action in ACTIONS}
        seen: set[str] = set()
        for active in self.screen.active_bindings.values():
            binding = active.binding
            action = named.get(binding.id or "")
            family = "" if action is not None else (binding.id or "").partition(".")[0]
            name = action.palette if action is not None else f"{family}: {binding.description}" if family else ""
            moves_only = action is None and not binding.show  # A command that moves a cursor once helps nobody.
            if not name or name in seen or moves_only or not active.enabled:
                continue
            seen.add(name)
            run = partial(self.app.run_action, binding.action, active.node)
            yield Command(name, binding.tooltip or binding.description, run)

    def _for_streams(self) -> Iterator[Command]:
        for stream in self._console.source.snapshot().streams:
            if not is_over(stream):
                who = f"{short_id(stream.id)} ({safe_text(stream.client)}, {stream.lane})"
                run = partial(self.app.post_message, StopStream(stream))
                yield Command(f"stream: Stop {who}", "End it and tell its client; asks first.", run)
