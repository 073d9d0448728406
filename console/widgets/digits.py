"""Big numerals, three rows high, for what should be readable across a room."""

from __future__ import annotations

_SHAPES: dict[str, tuple[str, str, str]] = {
    "0": ("█▀█", "█ █", "▀▀▀"),
    "1": ("▀█ ", " █ ", "▀▀▀"),
    "2": ("▀▀█", "█▀▀", "▀▀▀"),
    "3": ("▀▀█", " ▀█", "▀▀▀"),
    "4": ("█ █", "▀▀█", "  ▀"),
    "5": ("█▀▀", "▀▀█", "▀▀▀"),
    "6": ("█▀▀", "█▀█", "▀▀▀"),
    "7": ("▀▀█", "  █", "  ▀"),
    "8": ("█▀█", "█▀█", "▀▀▀"),
    "9": ("█▀█", "▀▀█", "▀▀▀"),
    ".": (" ", " ", "▀"),
    ",": (" ", " ", "▄"),
    "-": ("   ", "▀▀▀", "   "),
    " ": (" ", " ", " "),
}


def big_text(text: str) -> tuple[str, str, str]:
    """A number as three rows of equal width. Raises KeyError for anything but digits, `.`, `,`, `-` and blanks."""
    shapes = [_SHAPES[character] for character in text]
    top, middle, bottom = (" ".join(shape[row] for shape in shapes) for row in range(3))
    return top, middle, bottom
