"""Questions that stand in front of a screen until they are answered.

Each says what will happen, has the verb on its button, and has the harmless answer in focus. They decide nothing
themselves: the answer is the screen's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Button, Static

from console.editing import LIMITS, Draft, Editing, short_name
from console.format import count_noun, safe_text
from console.limit_words import file_name, show_text, show_value
from console.widgets.keybar import KeyBar
from console.widgets.lines import plain_ascii


class Choice(msgspec.Struct, frozen=True):
    """One way to answer a dialog."""

    id: str
    label: str
    """The verb that is done, never only `Yes`."""
    danger: bool = False
    """True when something of someone's is lost by it."""
    key: str = ""
    """The letter that answers so at once; it stands before the label."""


class Dialog(ModalScreen[ScreenResultType]):
    """A framed question with a row of buttons; the first choice is the harmless one, in focus and on Esc."""

    AUTO_FOCUS = "Button"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,shift+tab,h", "app.focus_previous", "Previous button", show=False),
        Binding("right,tab,l", "app.focus_next", "Choose", key_display="← →"),
        Binding("space", "press", "Press", key_display="⏎"),
        Binding("escape", "answer_harmless", "Leave it", key_display="esc"),
        Binding("down,j", "scroll_text(1)", "Scroll down", show=False),
        Binding("up,k", "scroll_text(-1)", "Scroll up", show=False),
    ]

    # Scrollbars are drawn with block characters; the application sizes them for all, which only CSS outranks.
    CSS = """
    Dialog.-ascii .dialog-text { scrollbar-size-vertical: 0; }
    """

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > .dialog-box {
        width: 72; max-width: 92%; height: auto; max-height: 96%;
        background: $surface; border: heavy $primary; border-title-color: $foreground; border-title-style: bold;
        padding: 1 2;
    }
    Dialog > .dialog-box.-danger { border: heavy $warning; }
    Dialog.-ascii > .dialog-box, Dialog.-ascii > .dialog-box.-danger { border: ascii $primary; }
    Dialog .dialog-text { height: auto; max-height: 50vh; scrollbar-size-vertical: 1; }
    Dialog .dialog-text Static { height: auto; width: 1fr; color: $foreground; }
    Dialog .dialog-buttons { height: 1; margin-top: 1; align-horizontal: right; }
    Dialog .dialog-buttons Button {
        height: 1; min-width: 10; margin-left: 2; padding: 0 1; border: none;
        background: $panel; color: $foreground; text-style: none;
    }
    Dialog .dialog-buttons Button:hover { background: $boost; }
    Dialog .dialog-buttons Button.-danger { color: $text-warning; }
    Dialog .dialog-buttons Button:focus {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
    }
    """

    def __init__(self, title: str, paragraphs: Sequence[str], choices: Sequence[Choice]) -> None:
        super().__init__()
        self._heading = title
        self._paragraphs = tuple(paragraphs)
        self._choices = name_choices(choices)

    def compose(self) -> ComposeResult:
        """The frame, its text and its buttons; the keys that work here over those of the screen beneath."""
        danger = any(choice.danger for choice in self._choices)
        with Vertical(classes="dialog-box -danger" if danger else "dialog-box") as box:
            box.border_title = self._sign(f"{'▲ ' if danger else ''}{safe_text(self._heading)}")
            with VerticalScroll(classes="dialog-text", can_focus=False):
                yield Static(self._sign("\n\n".join(self._paragraphs)), markup=False)
            with Horizontal(classes="dialog-buttons"):
                for choice in self._choices:
                    yield Button(
                        f"{choice.key} {choice.label}".strip(), id=choice.id, classes="-danger" if choice.danger else ""
                    )
        yield KeyBar()

    def on_key(self, event: events.Key) -> None:
        """A button's letter presses it, wherever the focus is."""
        for choice in self._choices:
            if choice.key and event.character == choice.key:
                event.stop()
                self.dismiss(self.answer(choice.id))
                return

    def on_mount(self) -> None:
        """Draw plainly where the terminal asks for it."""
        self.set_class(self.app.has_class("-ascii"), "-ascii")

    def _sign(self, text: str) -> str:
        return plain_ascii(text) if self.app.has_class("-ascii") else text

    def answer(self, choice_id: str) -> ScreenResultType:
        """The result that a choice stands for."""
        raise NotImplementedError

    @on(Button.Pressed)
    def _finish(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(self.answer(event.button.id or self._choices[0].id))

    def action_answer_harmless(self) -> None:
        """Leave everything as it is."""
        self.dismiss(self.answer(self._choices[0].id))

    def action_press(self) -> None:
        """Press the button in focus; Textual's buttons take Enter only."""
        if isinstance(self.focused, Button):
            self.focused.press()

    def action_scroll_text(self, lines: int) -> None:
        """Move a long text by lines."""
        self.query_one(".dialog-text", VerticalScroll).scroll_relative(y=lines, animate=False)


def name_choices(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices with a letter each: the first of one of its words that nothing else has."""
    taken = set(_MOVING)
    named: list[Choice] = []
    for choice in choices:
        letters = (word[0].lower() for word in choice.label.split() if word[0].isalpha())
        key = next((letter for letter in letters if letter not in taken), "")
        taken.add(key)
        named.append(msgspec.structs.replace(choice, key=key))
    return tuple(named)


_MOVING = "hjkl"
"""Letters that move between buttons and through the text."""


class ConfirmDialog(Dialog[bool]):
    """Asks before one act; True only when the button with the verb was pressed."""

    def __init__(self, title: str, consequence: str, verb: str, cancel: str = "Cancel") -> None:
        super().__init__(title, [consequence], [Choice("cancel", cancel), Choice("confirm", verb, danger=True)])

    def answer(self, choice_id: str) -> bool:
        """Whether to do it."""
        return choice_id == "confirm"


class QuitDialog(Dialog[Literal["cut", "cancel"]]):
    """Asks before quitting while streams are open or edits of the policy are not saved."""

    def __init__(self, open_streams: int, unsaved_edits: int = 0) -> None:
        super().__init__(
            "Quit homebase-console?",
            _explain_quit(open_streams, unsaved_edits),
            [Choice("cancel", "Stay"), Choice("cut", "Cut and quit" if open_streams else "Quit", danger=True)],
        )

    def answer(self, choice_id: str) -> Literal["cut", "cancel"]:
        """`cut` to end everything now."""
        return "cut" if choice_id == "cut" else "cancel"


def _explain_quit(open_streams: int, unsaved_edits: int) -> list[str]:
    told: list[str] = []
    if open_streams:
        are, them = ("is", "it") if open_streams == 1 else ("are", "them")
        told.append(
            f"{count_noun(open_streams, 'stream')} {are} open. Quitting cuts {them} now; "
            "each client is told by an error event."
        )
    if unsaved_edits:
        told.append(f"{count_noun(unsaved_edits, 'policy edit')} not saved: lost when you quit.")
    return told or ["Nothing is running."]


class ConflictDialog(Dialog[Literal["mine", "file", "cancel"]]):
    """Asks what to do about limits that were edited here and changed in the file meanwhile; shows each of them."""

    def __init__(self, editing: Editing) -> None:
        file = file_name(editing.state)
        super().__init__(
            f"{file} changed underneath",
            [
                f"{count_noun(len(editing.conflicts), 'limit')} edited here {_has(editing)} another value in {file} by "
                "now. Limits changed only there are taken over either way.",
                *(_explain_conflict(editing, draft) for draft in editing.conflicts),
                "Keep mine writes your text over the file's. Take the file drops your edit of these limits. "
                "To choose one by one: Cancel, then x on a row takes the file's value for it.",
            ],
            [Choice("cancel", "Cancel"), Choice("file", "Take the file"), Choice("mine", "Keep mine", danger=True)],
        )

    def answer(self, choice_id: str) -> Literal["mine", "file", "cancel"]:
        """Whose text wins."""
        return "mine" if choice_id == "mine" else "file" if choice_id == "file" else "cancel"


def _has(editing: Editing) -> str:
    return "has" if len(editing.conflicts) == 1 else "have"


def _explain_conflict(editing: Editing, draft: Draft) -> str:
    limit = LIMITS[draft.key]
    was, theirs = show_value(limit, draft.base), show_value(limit, editing.current(draft.key))
    return safe_text(f"{short_name(draft.key)}: yours {show_text(limit, draft.text)}, file {theirs} (was {was})")
