"""The last line of every screen: the places by number, then what can be done here. Each part can be clicked."""

from __future__ import annotations

from typing import Protocol, cast

from textual import events
from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen

from console.actions import name_key
from console.widgets.lines import Line, Lines, line_width, split_ends

_ALWAYS = ("help.open", "app.quit")


class _Edited(Protocol):
    unsaved_edits: int


def count_unsaved(app: App[object]) -> int:
    """How many limits are edited and not saved, for an application that edits limits."""
    return cast("_Edited", app).unsaved_edits if hasattr(app, "unsaved_edits") else 0


class Key:
    """One part of the bar: what it says and what a click runs."""

    def __init__(self, key: str, label: str, call: str, namespace: DOMNode, id: str, enabled: bool) -> None:
        self.key, self.label, self.call, self.id = key, label, call, id
        self.namespace, self.enabled = namespace, enabled
        self.mark = ""
        """What waits there for the operator, behind the label."""

    @property
    def is_place(self) -> bool:
        """True for the numbered screens, which stand at the left."""
        return self.id.startswith("screen.")

    def draw(self, here: str) -> Line:
        """Key and label; the place that is in front is marked."""
        mark = f"{self.mark} " if self.mark else ""
        if self.is_place and self.call == f"show_place('{here}')":
            return ((f" {self.key} {self.label} {mark}", "accent-text bold reverse"),)
        role = "" if self.enabled else "band-border"
        return (
            (f" {self.key}", "accent-text bold" if self.enabled else role),
            (f" {self.label} ", role),
            (mark, "state-warning bold"),
        )


def collect_keys(screen: Screen[object]) -> list[Key]:
    """What can be pressed now and is meant for the bar: places first, then the screen's own, then the rest."""
    keys: dict[str, Key] = {}
    for name, active in screen.active_bindings.items():
        binding = active.binding
        if binding.show and binding.action not in keys:
            shown, ident = _show_key(name, binding, screen), binding.id or binding.action
            keys[binding.action] = Key(shown, binding.description, binding.action, active.node, ident, active.enabled)
    found = list(keys.values())
    unsaved = count_unsaved(screen.app)
    for key in found:
        if key.id == "screen.policy" and unsaved:
            key.mark = f"•{unsaved}"
    return [*(k for k in found if k.is_place), *(k for k in found if not k.is_place)]


def _show_key(name: str, binding: Binding, screen: Screen[object]) -> str:
    """The sign on the key, unless a text field would take that sign: then the name of a key that works."""
    sign = binding.key_display
    if not sign or screen.app.has_class("-ascii"):
        return name_key(name)
    is_taken = len(sign) == 1 and screen.focused is not None and screen.focused.check_consume_key(sign, sign)
    return name_key(name) if is_taken else sign


def choose_keys(keys: list[Key], width: int) -> tuple[list[Key], list[Key]]:
    """What fits: a left part that loses its end first, and a right part that always stays."""
    right = [key for id in _ALWAYS for key in keys if key.id == id]
    left: list[Key] = []
    room = width - sum(line_width(key.draw("")) for key in right) - 1
    for key in keys:
        size = line_width(key.draw(""))
        if key not in right and size <= room:
            left.append(key)
            room -= size
    return left, right


class KeyBar(Lines):
    """Draws the active bindings; draws again when focus or what is possible changes."""

    DEFAULT_CSS = """
    KeyBar { height: 1; dock: bottom; background: $title-background; color: $foreground; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Key] = []
        self._here = ""
        self._zones: list[tuple[int, int, Key]] = []

    def on_mount(self) -> None:
        """Follow the screen's bindings, its coming to the front, and the theme."""
        super().on_mount()
        self.screen.bindings_updated_signal.subscribe(self, self._follow_screen)
        self.app.screen_change_signal.subscribe(self, self._follow_screen)
        self.call_after_refresh(self.redraw)

    def _follow_screen(self, screen: Screen[object]) -> None:
        if self.is_attached and screen is self.screen and self.app.screen is screen:
            self.redraw()

    def on_resize(self) -> None:
        """Fit the new width."""
        self.redraw()

    def redraw(self) -> None:
        """Draw what can be pressed now; under a dialog, what could be before it."""
        if not self.size:
            return
        if self.screen is self.app.screen:
            self._keys = collect_keys(self.screen)
            self._here = self.app.current_mode if len(self.app.screen_stack) == 1 else ""
        width = self.size.width
        left, right = choose_keys(self._keys, width)
        left_line: Line = tuple(span for key in left for span in key.draw(self._here))
        right_line: Line = tuple(span for key in right for span in key.draw(self._here))
        self._zones = [*self._zone(left, 0), *self._zone(right, width - line_width(right_line))]
        self.show_lines((split_ends(left_line, right_line, width),))

    def _zone(self, keys: list[Key], start: int) -> list[tuple[int, int, Key]]:
        zones: list[tuple[int, int, Key]] = []
        for key in keys:
            end = start + line_width(key.draw(""))
            zones.append((start, end, key))
            start = end
        return zones

    async def on_click(self, event: events.Click) -> None:
        """Do what the part under the mouse says."""
        for start, end, key in self._zones:
            if start <= event.x < end and key.enabled:
                event.stop()
                await self.app.run_action(key.call, default_namespace=key.namespace)
                return
