"""Every key of the console in one table: from it come the bindings, the key bar, help and the command palette."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from textual.binding import Binding, BindingType

Place = Literal["anywhere", "streams", "refusals", "detail"]
"""Where an action is bound. Screens that bind their own keys bring them along; help shows those too."""


class Action(msgspec.Struct, frozen=True):
    """One thing the operator can do."""

    id: str
    """Stable name, for remapping keys."""
    place: Place
    keys: str
    """Key names separated by commas; the first is the one that the key bar shows."""
    call: str
    """What Textual runs."""
    label: str
    """One or two words for the key bar."""
    meaning: str
    """One sentence for help."""
    shown: str = ""
    """The key as the key bar writes it, when its name is not what is on the key."""
    in_bar: bool = False
    palette: str = ""
    """`family: Verb object` in the command palette; empty when it makes no sense there."""


ACTIONS: tuple[Action, ...] = (
    Action(
        "screen.streams",
        "anywhere",
        "1",
        "show_place('streams')",
        "Streams",
        "Streams, rates, memory and the last refusals.",
        in_bar=True,
        palette="view: Streams",
    ),
    Action(
        "screen.refusals",
        "anywhere",
        "2",
        "show_place('refusals')",
        "Refusals",
        "Every refusal: who, why, with which numbers.",
        in_bar=True,
        palette="view: Refusals",
    ),
    Action(
        "screen.policy",
        "anywhere",
        "3",
        "show_place('policy')",
        "Policy",
        "Every limit, its meaning and its value; edit and save.",
        in_bar=True,
        palette="view: Policy",
    ),
    Action(
        "screen.log",
        "anywhere",
        "4",
        "show_place('log')",
        "Log",
        "What the server and the engine wrote.",
        in_bar=True,
        palette="view: Log",
    ),
    Action(
        "policy.edit",
        "anywhere",
        "e",
        "edit_limits",
        "Limits",
        "Edit the limits.",
        in_bar=True,
        palette="policy: Edit limits",
    ),
    Action(
        "palette.open",
        "anywhere",
        "colon,ctrl+p",
        "command_palette",
        "Commands",
        "Every command by name.",
        shown=":",
        in_bar=True,
    ),
    Action(
        "help.open",
        "anywhere",
        "question_mark,f1",
        "help",
        "Help",
        "The keys of this screen, and what the signs mean.",
        shown="?",
        in_bar=True,
        palette="view: Help",
    ),
    Action(
        "theme.next",
        "anywhere",
        "t",
        "next_theme",
        "Theme",
        "The next theme, kept in homebase.toml.",
        palette="theme: Next",
    ),
    Action(
        "copy.curl",
        "anywhere",
        "y",
        "copy_curl",
        "Copy curl",
        "Copy a curl command that streams from this server.",
        palette="copy: curl example",
    ),
    Action(
        "copy.url",
        "anywhere",
        "Y,f8",
        "copy_url",
        "Copy URL",
        "Copy the base URL for clients.",
        palette="copy: Base URL",
    ),
    Action(
        "app.quit",
        "anywhere",
        "q,ctrl+q",
        "quit",
        "Quit",
        "Stop the server and leave; asks first while streams are open.",
        shown="q",
        in_bar=True,
        palette="server: Quit",
    ),
    Action("stream.down", "streams", "down,j", "move(1)", "Next stream", "Choose the next stream."),
    Action("stream.up", "streams", "up,k", "move(-1)", "Previous stream", "Choose the previous stream."),
    Action("stream.first", "streams", "home,g", "move(-9999)", "First stream", "Choose the first stream."),
    Action("stream.last", "streams", "end,G", "move(9999)", "Last stream", "Choose the last stream."),
    Action(
        "stream.open",
        "streams",
        "enter,l",
        "open_stream",
        "Detail",
        "Everything about the chosen stream.",
        shown="⏎",
        in_bar=True,
        palette="stream: Show detail",
    ),
    Action(
        "stream.stop",
        "streams",
        "x,ctrl+d,delete",
        "stop_stream",
        "Stop",
        "End the chosen stream and tell its client; asks first.",
        in_bar=True,
        palette="stream: Stop…",
    ),
    Action(
        "stream.table",
        "streams",
        "v",
        "toggle_table",
        "Table",
        "Show streams as bands or as a table.",
        palette="view: Bands or table",
    ),
    Action(
        "refusal.filter",
        "refusals",
        "slash",
        "filter",
        "Filter",
        "Show only rows that contain a text.",
        shown="/",
        in_bar=True,
        palette="refusals: Filter",
    ),
    Action(
        "refusal.copy",
        "refusals",
        "c",
        "copy_refusal",
        "Copy row",
        "Copy the sentence that this client was sent.",
        in_bar=True,
        palette="refusals: Copy message",
    ),
    Action("refusal.back", "refusals", "escape,h", "back", "Streams", "Close the filter, then back to the streams."),
    Action("detail.back", "detail", "escape,h,left", "back", "Back", "Back to the streams.", shown="esc", in_bar=True),
    Action(
        "detail.stop",
        "detail",
        "x,ctrl+d,delete",
        "stop_stream",
        "Stop",
        "End this stream and tell its client; asks first.",
        in_bar=True,
        palette="stream: Stop…",
    ),
    Action("detail.next", "detail", "down,j", "step(1)", "Next stream", "The next stream.", shown="↓", in_bar=True),
    Action(
        "detail.previous",
        "detail",
        "up,k",
        "step(-1)",
        "Previous stream",
        "The previous stream.",
        shown="↑",
        in_bar=True,
    ),
)

_KEY_NAMES = {
    "question_mark": "?",
    "colon": ":",
    "slash": "/",
    "enter": "Enter",
    "escape": "Esc",
    "delete": "Del",
    "down": "↓",
    "up": "↑",
    "left": "←",
    "right": "→",
    "home": "Home",
    "end": "End",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "space": "Space",
    "tab": "Tab",
    "shift+tab": "Shift+Tab",
}


def bindings_for(place: Place) -> list[BindingType]:
    """The bindings of one place, with ids so that keys can be remapped."""
    return [_bind(action) for action in ACTIONS if action.place == place]


def _bind(action: Action) -> Binding:
    return Binding(
        action.keys,
        action.call,
        action.label,
        show=action.in_bar,
        key_display=action.shown or None,
        tooltip=action.meaning,
        id=action.id,
    )


def find_action(id: str) -> Action:
    """The action with this id; raises KeyError when there is none."""
    for action in ACTIONS:
        if action.id == id:
            return action
    raise KeyError(id)


def name_key(key: str) -> str:
    """A key as people say it: `ctrl+d` is `^d`, `question_mark` is `?`."""
    if key in _KEY_NAMES:
        return _KEY_NAMES[key]
    if key.startswith("ctrl+"):
        return f"^{key[5:]}"
    return key.upper() if key[:1] == "f" and key[1:].isdigit() else key


def name_keys(keys: Iterable[str]) -> str:
    """Several keys for one action, as help writes them."""
    names = [name_key(key.strip()) for key in keys]
    return "  ".join(sorted(names, key=lambda name: name.startswith("^")))
