"""A widget that is a stack of styled lines, redrawing only the lines that changed.

Text carries roles: names of theme variables (`state-decode`) and the words bold, reverse and underline. Foreign text
must have passed `format.safe_text` before it gets here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

Span = tuple[str, str]
"""Text and its roles, separated by blanks."""

Line = tuple[Span, ...]
"""One row of the screen, left to right."""

_ATTRIBUTES = frozenset({"bold", "reverse", "underline", "italic", "strike"})

_ASCII = str.maketrans(
    {
        **dict.fromkeys("━", "="),
        **dict.fromkeys("─┄╌", "-"),
        **dict.fromkeys("┃│╎╿", "|"),
        **dict.fromkeys("┏┓┗┛╭╮╰╯┌┐└┘├┤┬┴┼┣┫┳┻╋┠┨┯┷┡┩╺╸╹╻┱┲", "+"),
        **dict.fromkeys("█▉▊▋■▰▇▀", "#"),
        **dict.fromkeys("▓▍▌▐▅▆", "="),
        **dict.fromkeys("▒", "+"),
        **dict.fromkeys("░▎▏▃▄", "-"),
        **dict.fromkeys("▂▁▱", "_"),
        **dict.fromkeys("·□", "."),
        **dict.fromkeys("●▪", "*"),
        **dict.fromkeys("◐◑◒◓", "%"),
        **dict.fromkeys("○◌◇", "o"),
        **dict.fromkeys("✕×", "x"),
        **dict.fromkeys("▲↑", "^"),
        **dict.fromkeys("↓▼", "v"),
        **dict.fromkeys("→▶▸»", ">"),
        **dict.fromkeys("←◀◂«", "<"),
        "╍": ":",
        "…": "~",
        "•": "*",
        "↯": "!",
        "≥": ">",
        "≤": "<",
        "–": "-",
        "—": "-",
        "’": "'",
    }
)
"""One cell for one cell, so that nothing moves when a terminal's font has no such signs."""


def plain_ascii(text: str) -> str:
    """The text with the console's own signs replaced by ASCII ones of the same width."""
    return text.translate(_ASCII)


def line_width(line: Line) -> int:
    """How many cells the line takes."""
    return sum(cell_len(text) for text, _ in line)


def fit_line(line: Line, width: int) -> Line:
    """The line cut or filled with blanks to exactly `width` cells."""
    kept: list[Span] = []
    left = width
    for text, role in line:
        size = cell_len(text)
        if size > left:
            text = set_cell_size(text, left)
            size = left
        if text:
            kept.append((text, role))
        left -= size
        if left <= 0:
            return tuple(kept)
    return (*kept, (" " * left, ""))


def join_whole(parts: Sequence[Line], width: int) -> Line:
    """The first parts that fit in the width, each whole: a number that is cut reads as another number."""
    joined: Line = ()
    for part in parts:
        if line_width((*joined, *part)) > width:
            break
        joined = (*joined, *part)
    return joined


def split_ends(left: Line, right: Line, width: int, fill: Span = (" ", "")) -> Line:
    """Two lines as one of `width` cells, the second at its right end; the first gives way."""
    room = width - line_width(right)
    used = line_width(left)
    if used > room:
        return (*fit_line(left, max(0, room - 1)), ("…" if room > 0 else "", "text-muted"), *right)
    return (*left, (fill[0] * (room - used), fill[1]), *right)


class Lines(Widget):
    """Shows lines that pure functions built. `show_lines` compares them with what is there."""

    DEFAULT_CSS = """
    Lines { height: auto; width: 1fr; }
    """

    def __init__(
        self, *, name: str | None = None, id: str | None = None, classes: str | None = None, disabled: bool = False
    ) -> None:
        super().__init__(name=name, id=id, classes=classes, disabled=disabled)
        self._rows: tuple[Line, ...] = ()
        self._row_strips: dict[int, Strip] = {}
        self._role_styles: dict[str, Style] = {}

    def on_mount(self) -> None:
        """Follow the theme."""
        self.app.theme_changed_signal.subscribe(self, self._follow_theme)

    def _follow_theme(self, _theme: Theme) -> None:
        self._forget_drawing()

    def _forget_drawing(self) -> None:
        self._role_styles.clear()
        self._row_strips.clear()
        self.refresh()

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is shown now."""
        return self._rows

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Replace the lines; rows that are equal are not drawn again."""
        before, self._rows = self._rows, tuple(lines)
        if len(before) != len(self._rows):
            self._row_strips.clear()
            self.refresh(layout=True)
            return
        changed = [y for y, line in enumerate(self._rows) if line != before[y]]
        for y in changed:
            self._row_strips.pop(y, None)
        if changed and self.size:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def get_content_height(self, container: Any, viewport: Any, width: int) -> int:
        """As many rows as there are lines."""
        return len(self._rows)

    def get_content_width(self, container: Any, viewport: Any) -> int:
        """As wide as the longest line."""
        return max((line_width(line) for line in self._rows), default=0)

    def notify_style_update(self) -> None:
        """Colours behind the text may have changed: draw all again."""
        super().notify_style_update()
        self._role_styles.clear()
        self._row_strips.clear()

    def render_line(self, y: int) -> Strip:
        """One row as Textual wants it, from the cache when nothing changed."""
        selection = self.text_selection
        width = self.size.width
        strip = self._row_strips.get(y)
        if strip is None or strip.cell_length != width or selection is not None:
            strip = self._draw(y, width, selection)
            if selection is None:
                self._row_strips[y] = strip
        return strip

    def _draw(self, y: int, width: int, selection: Selection | None) -> Strip:
        base = self.rich_style
        line = fit_line(self._rows[y], width) if y < len(self._rows) else ((" " * width, ""),)
        segments = [Segment(self._glyphs(text), self._style(role, base)) for text, role in line]
        strip = Strip(segments, width)
        span = selection.get_span(y) if selection is not None else None
        if span is not None:
            strip = self._mark_selected(strip, span)
        return strip.apply_offsets(0, y)

    def _glyphs(self, text: str) -> str:
        return plain_ascii(text) if self.app.has_class("-ascii") else text

    def _style(self, role: str, base: Style) -> Style:
        style = self._role_styles.get(role)
        if style is None:
            style = self._role_styles[role] = base + resolve_role(role, self.app.theme_variables)
        return style

    def _mark_selected(self, strip: Strip, span: tuple[int, int]) -> Strip:
        start, end = span
        stop = strip.cell_length if end == -1 else end
        before, chosen, after = strip.divide([start, stop, strip.cell_length])
        style = self.screen.get_component_rich_style("screen--selection")
        return Strip.join([before, chosen.apply_style(style), after])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The chosen text, for copying."""
        text = "\n".join("".join(part for part, _ in line).rstrip() for line in self._rows)
        return selection.extract(text), "\n"


def resolve_role(role: str, variables: dict[str, str]) -> Style:
    """A style from roles; `on-NAME` colours what is behind the text. An unknown name changes nothing."""
    style = Style()
    for word in role.split():
        if word in _ATTRIBUTES:
            style += Style.parse(word)
        elif word.startswith("on-") and (colour := variables.get(word[3:], "")).startswith("#"):
            style += Style(bgcolor=colour)
        elif (colour := variables.get(word, "")).startswith("#"):
            style += Style(color=colour)
    return style
