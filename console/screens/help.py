"""Help over the screen it was opened from: its keys, then what symbols, colours and thresholds mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen

from console.widgets.limit_lines import wrap
from console.widgets.lines import Line, Lines, plain_ascii

KEYS_WIDTH = 20
SIGN_WIDTH = 20


class HelpScreen(ModalScreen[None]):
    """A scrollable page: rows of (keys, meaning), then a legend of (sign, colour role, meaning)."""

    AUTO_FOCUS = "#help-page"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter", "close", "Close help", show=False),
        Binding("down,j", "scroll(1)", "Down", show=False),
        Binding("up,k", "scroll(-1)", "Up", show=False),
        Binding("g", "scroll(-9999)", "Top", show=False),
        Binding("G", "scroll(9999)", "Bottom", show=False),
        Binding("space", "page", "Page down", show=False),
    ]

    # Scrollbars are drawn with block characters; the application sizes them for all, which only CSS outranks.
    CSS = """
    HelpScreen.-ascii #help-page { scrollbar-size-vertical: 0; }
    """

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > #help-box {
        width: 84; max-width: 96%; height: auto; max-height: 94%;
        background: $surface; border: heavy $band-selected; border-title-color: $text-strong; border-title-style: bold;
        border-subtitle-color: $text-muted; padding: 0 1;
    }
    HelpScreen.-ascii > #help-box { border: ascii $band-selected; }
    HelpScreen #help-page { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    """

    def __init__(
        self, title: str, rows: Sequence[tuple[str, str]], legend: Sequence[tuple[str, str, str]] = ()
    ) -> None:
        super().__init__()
        self._heading = title
        self._rows = tuple(rows)
        self._legend = tuple(legend)

    def compose(self) -> ComposeResult:
        """The frame and the page."""
        with Vertical(id="help-box") as box:
            box.border_title = f"help: {self._heading}"
            box.border_subtitle = self._sign("Esc closes · ↑ ↓ scroll")
            with VerticalScroll(id="help-page"):
                yield Lines()

    def _sign(self, text: str) -> str:
        return plain_ascii(text) if self.app.has_class("-ascii") else text

    def on_mount(self) -> None:
        """Draw once the width is known."""
        self.set_class(self.app.has_class("-ascii"), "-ascii")
        self.call_after_refresh(self._draw)

    def on_resize(self, event: events.Resize) -> None:
        """The page is wrapped for a width."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = self.query_one("#help-page", VerticalScroll).scrollable_content_region.width
        self.query_one(Lines).show_lines(help_lines(self._rows, self._legend, width))

    def action_close(self) -> None:
        """Back to the screen underneath."""
        self.dismiss(None)

    def action_scroll(self, rows: int) -> None:
        """Move the page by rows."""
        self.query_one("#help-page", VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_page(self) -> None:
        """Move the page by one screen."""
        page = self.query_one("#help-page", VerticalScroll)
        page.scroll_relative(y=max(1, page.size.height - 1), animate=False)


def help_lines(rows: Sequence[tuple[str, str]], legend: Sequence[tuple[str, str, str]], width: int) -> list[Line]:
    """The page as lines: keys, a heading, the legend."""
    lines: list[Line] = [_heading("keys", width)]
    for keys, meaning in rows:
        lines += _pair(keys, "accent-text bold", meaning, KEYS_WIDTH, width)
    if legend:
        lines += [((" ", ""),), _heading("signs, colours and thresholds", width)]
    for sign, role, meaning in legend:
        lines += _pair(sign, f"{role} bold".strip(), meaning, SIGN_WIDTH, width)
    return lines


def _heading(text: str, width: int) -> Line:
    return ((f"{text} ", "text-strong bold"), ("─" * max(0, width - len(text) - 1), "plot-grid"))


def _pair(left: str, role: str, right: str, left_width: int, width: int) -> list[Line]:
    lefts = wrap(left, left_width - 2, role) or [((" ", ""),)]
    rights = wrap(right, max(10, width - left_width)) or [((" ", ""),)]
    lines: list[Line] = []
    for y in range(max(len(lefts), len(rights))):
        text, shown_role = lefts[y][0] if y < len(lefts) else ("", "")
        tail = rights[y] if y < len(rights) else ()
        lines.append(((f" {text}".ljust(left_width), shown_role), *tail))
    return lines
