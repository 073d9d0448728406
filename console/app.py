"""The application: it holds the source, the themes and the clock, switches screens, and does what they ask for.

What is drawn lives in the screens; what is served lives behind the source.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Protocol, cast, runtime_checkable

from textual import events, on
from textual.app import App
from textual.binding import BindingType
from textual.command import Provider
from textual.screen import Screen

from console.actions import bindings_for
from console.clipboard import copy_text
from console.format import base_url, count_noun, curl_example, safe_text, short_id
from console.helping import help_rows, legend_rows
from console.key_order import KeyOrder
from console.palette import ConsoleCommands
from console.screens.dialogs import ConfirmDialog, QuitDialog
from console.screens.help import HelpScreen
from console.screens.log import LogScreen
from console.screens.policy import PolicyScreen
from console.screens.refusals import RefusalsScreen
from console.screens.small import SmallScreen
from console.screens.streams import StreamsScreen
from console.source import Source
from console.themes import DEFAULT_THEME, LoadedThemes, default_roles
from console.toasts import toast_for
from console.widgets.band_view import read_drawing
from console.widgets.copying import CopyText
from console.widgets.home_plan import is_too_small
from console.widgets.phases import is_over
from console.widgets.stop import StopStream
from console.widgets.words import name_to_try
from server.errors import HomebaseError
from server.events import AnyNotice, PolicyChanged, PolicyProblem
from server.policy import ConsolePolicy
from server.snapshot import Snapshot, StreamView

PLACES: tuple[tuple[str, Callable[[Source], Screen[None]]], ...] = (
    ("streams", StreamsScreen),
    ("refusals", RefusalsScreen),
    ("policy", PolicyScreen),
    ("log", LogScreen),
)
"""The numbered screens, in the order of their numbers."""

NEWS_FOR_S = 30.0
"""What is older when the console opens is history, and in the log: a start takes a few seconds."""

log = logging.getLogger(__name__)


@runtime_checkable
class Refreshing(Protocol):
    """A screen that follows the snapshot."""

    def refresh_view(self, snapshot: Snapshot) -> None:
        """Draw a snapshot."""
        ...


class HomebaseApp(App[None]):
    """The console over one source."""

    TITLE = "homebase"
    DEFAULT_MODE = "streams"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {ConsoleCommands}
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("anywhere")

    CSS = """
    * { scrollbar-size: 1 1; }
    Toast { background: $panel; color: $foreground; }
    CommandPalette > Vertical { width: 84; max-width: 92%; }
    SearchIcon { display: none; }
    .-ascii CommandPalette #--input { border: ascii $band-border; }
    .-ascii #home-panel { border-left: ascii $band-border; }
    .-ascii .policy-panel, .-ascii .log-panel, .-ascii .dialog-box, .-ascii #help-box { border: ascii $band-border; }
    .-ascii .policy-panel:focus-within, .-ascii .log-panel:focus-within { border: ascii $band-selected; }
    """

    def __init__(
        self,
        source: Source,
        *,
        themes: LoadedThemes,
        policy: ConsolePolicy,
        clock: Callable[[], float] = time.monotonic,
        auto_refresh: bool = True,
    ) -> None:
        super().__init__()
        self.source = source
        self.clock = clock
        """Monotonic seconds, the same clock as `Snapshot.monotonic_s`."""
        self.key_order = KeyOrder(cast("App[object]", self))
        """Lets keys in one at a time."""
        self._policy = policy
        self._auto_refresh = auto_refresh
        self._themes = themes
        self._seen = 0
        self._places: dict[str, Screen[None]] = {}
        """The numbered screens that were opened so far."""
        self._theme_saves = asyncio.Lock()
        self._followed_theme = policy.theme
        for theme in themes.themes:
            self.register_theme(theme)
        self.theme = policy.theme if policy.theme in themes.names else DEFAULT_THEME
        self.set_class(policy.ascii, "-ascii")
        for name, build in PLACES:
            self.add_mode(name, partial(self._build_place, name, build))

    def _build_place(self, name: str, build: Callable[[Source], Screen[None]]) -> Screen[None]:
        self._places[name] = build(self.source)
        return self._places[name]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our colour roles, for any theme that does not know them."""
        return default_roles(True)

    async def on_event(self, event: events.Event) -> None:
        """Keys wait for each other; everything else goes on as it comes."""
        if not self.key_order.holds(event):
            await super().on_event(event)

    def on_mount(self) -> None:
        """Begin to follow the source."""
        self._skip_old_news()
        for problem in self._themes.problems:
            self._warn(f"theme: {problem}")
        if self._policy.theme not in self._themes.names:
            self._warn(f"theme {safe_text(self._policy.theme)!r} does not exist; {self.theme} is used.")
        if self._auto_refresh:
            self.set_interval(1 / self._policy.refresh_hz, self.tick)

    @property
    def theme_names(self) -> tuple[str, ...]:
        """The themes of this console, without those that Textual brings."""
        return self._themes.names

    def tick(self) -> None:
        """Look at the source once and draw what is new."""
        if not self.is_running:
            return
        self._tell_news()
        self._follow_theme_limit()
        snapshot = self.source.snapshot()
        screen = self._front
        # A screen that is being opened has no widgets yet: on a busy machine that takes longer than a tick.
        if isinstance(screen, Refreshing) and screen.is_mounted:
            screen.refresh_view(snapshot)

    @property
    def _front(self) -> Screen[object]:
        """The screen that shows the server: the topmost one that is no dialog."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, Refreshing):
                return screen
        return self.screen

    def _skip_old_news(self) -> None:
        """Begin with what happened while the program was starting; the log has what was before."""
        now_s = self.source.snapshot().time_s
        for entry in self.source.notices(0):
            if now_s - entry.notice.time_s > NEWS_FOR_S:
                self._seen = max(self._seen, entry.sequence)

    def _tell_news(self) -> None:
        for entry in self.source.notices(self._seen):
            self._seen = max(self._seen, entry.sequence)
            if _says_itself(self._front, entry.notice):
                continue
            if (toast := toast_for(entry.notice, self.source.policy())) is not None:
                self.notify(toast.text, severity=toast.severity, timeout=toast.seconds, markup=False)

    def _follow_theme_limit(self) -> None:
        wanted = self.source.policy().policy.console.theme
        if wanted == self._followed_theme:
            return
        self._followed_theme = wanted
        if wanted in self._themes.names:
            self.theme = wanted
        else:
            known = ", ".join(self._themes.names)
            self._warn(f"theme {safe_text(wanted)!r} does not exist; known: {known}.")

    def on_resize(self, event: events.Resize) -> None:
        """Say so when the terminal is too small; come back when it is not."""
        self.call_later(self._fit_terminal)

    def _fit_terminal(self) -> None:
        covered = isinstance(self.screen, SmallScreen)
        small = is_too_small(*self.size)
        if small and not covered:
            self.push_screen(SmallScreen(self.source.snapshot()))
        elif covered and not small:
            self.pop_screen()

    def action_show_place(self, name: str) -> None:
        """Go to a numbered screen; what was open over it is closed."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.switch_mode(name)

    def action_edit_limits(self) -> None:
        """Go where limits are edited."""
        self.action_show_place("policy")

    def action_help(self) -> None:
        """The keys of the screen in front and the meaning of the signs."""
        legend = legend_rows(read_drawing(cast("App[object]", self)).plain)
        self.push_screen(HelpScreen(_place_name(self.screen), help_rows(self.screen), legend))

    def action_next_theme(self) -> None:
        """Take the next theme now and keep it in homebase.toml."""
        names = self._themes.names
        at = names.index(self.theme) if self.theme in names else -1
        self.use_theme(names[(at + 1) % len(names)])

    def use_theme(self, name: str) -> None:
        """Take a theme now and keep it in homebase.toml."""
        self.theme = name
        self._act(self._keep_theme(name))

    async def _keep_theme(self, name: str) -> None:
        async with self._theme_saves:
            if name != self.theme or self.source.policy().policy.console.theme == name:
                return
            try:
                state = await self.source.save({"console.theme": name}, self.source.policy().etag)
            except HomebaseError as error:
                self._warn(f"{name} is used for this run only; it was not saved: {error.message}")
                return
            self._followed_theme = state.policy.console.theme
            if self._followed_theme == name:
                self.notify(f"{name}, saved as [console] theme.", timeout=3, markup=False)
            else:
                self._warn(f"{name} was saved, but {self._followed_theme} is in force for this run.")

    def curl(self) -> str:
        """A command that streams from this server."""
        snapshot = self.source.snapshot()
        asks_key = self.source.policy().policy.server.wants_key
        return "\n".join(curl_example(base_url(snapshot.host, snapshot.port), name_to_try(snapshot), asks_key))

    def action_copy_curl(self) -> None:
        """Copy a command to try the server with."""
        self._copy(self.curl(), "The curl command")

    def action_copy_url(self) -> None:
        """Copy what clients call base URL."""
        snapshot = self.source.snapshot()
        url = base_url(snapshot.host, snapshot.port)
        self._copy(url, f"The base URL {url}")

    @on(CopyText)
    def _copy_for_screen(self, message: CopyText) -> None:
        self._copy(message.text, message.what)

    def _copy(self, text: str, what: str) -> None:
        self.notify(copy_text(cast("App[object]", self), text, what), timeout=4, markup=False)

    @on(StopStream)
    def _ask_stop(self, message: StopStream) -> None:
        stream = message.stream

        def decide(confirmed: bool | None) -> None:
            if confirmed:
                self._act(self._stop(stream))

        self.push_screen(ConfirmDialog(f"Stop {short_id(stream.id)}?", _stop_consequence(stream), "Stop it"), decide)

    async def _stop(self, stream: StreamView) -> None:
        ended = await self.source.stop(stream.id)
        name = short_id(stream.id)
        told = f"{name} is being ended; its client is told." if ended else f"{name} was over already."
        self.notify(told, timeout=4, markup=False)
        self.tick()

    async def action_quit(self) -> None:
        """Leave; asks first while streams are open or limits are edited and not saved."""
        open_streams = sum(not is_over(stream) for stream in self.source.snapshot().streams)
        unsaved = self.unsaved_edits
        if not open_streams and not unsaved:
            self.exit()
            return
        if isinstance(self.screen, QuitDialog):
            return

        def decide(answer: str | None) -> None:
            if answer == "cut":
                self.exit()

        self.push_screen(QuitDialog(open_streams, unsaved), decide)

    @property
    def unsaved_edits(self) -> int:
        """How many limits are edited on the Policy screen and not saved."""
        policy = self._places.get("policy")
        return policy.unsaved_edits if isinstance(policy, PolicyScreen) else 0

    def _act(self, act: Awaitable[None]) -> None:
        """Do something that may fail without taking the console down."""

        async def guarded() -> None:
            try:
                await act
            except HomebaseError as error:
                self.notify(safe_text(error.message), severity="error", timeout=10, markup=False)
            except Exception as error:
                # The console's worker edge: an act that broke is told, and the screen goes on.
                told = safe_text(f"{type(error).__name__}: {error}")
                self.notify(told, severity="error", timeout=10, markup=False)

        self.run_worker(guarded(), exit_on_error=False)

    def _warn(self, text: str) -> None:
        """Over the screen for a while, and in the log to be read again."""
        log.warning("%s", text)
        self.notify(safe_text(text), severity="warning", timeout=8, markup=False)


def _says_itself(screen: Screen[object], notice: AnyNotice) -> bool:
    """Whether a screen has a line for this: a toast would say it again, and cover what the screen shows."""
    if isinstance(screen, PolicyScreen):
        return isinstance(notice, PolicyChanged | PolicyProblem)
    return isinstance(screen, StreamsScreen) and isinstance(notice, PolicyProblem) and bool(notice.message)


def _place_name(screen: Screen[object]) -> str:
    return type(screen).__name__.removesuffix("Screen").lower()


def _stop_consequence(stream: StreamView) -> str:
    doing = f"in {stream.phase}, {count_noun(stream.completion_tokens, 'token')} sent"
    return (
        f"{safe_text(stream.client)} ({stream.lane}) is {doing}. Its stream ends now as cancelled and its client is "
        f"told; tokens that were sent stay with it."
    )
