"""Themes from TOML files: our colour roles beside Textual's, validated so that a bad file never stops the console."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from textual.color import Color, ColorParseError
from textual.theme import Theme

from console.assets import themes_folder

DEFAULT_THEME = "homebase-dark"


class Role(msgspec.Struct, frozen=True):
    """One colour of ours: what it is for, and its value where a theme leaves it out."""

    meaning: str
    dark: str
    light: str
    is_text: bool = True
    """True when words are written in it, so that its contrast must be at least 4.5:1."""


ROLES: dict[str, Role] = {
    "text-strong": Role("words that stand out", "#f2f5f9", "#11151a"),
    "text-muted": Role("words that step back", "#94a1b2", "#565e69"),
    "accent-text": Role("the model's name, links, keys", "#ffc66d", "#7d4e00"),
    "title-mark": Role("the name of the program", "#ffc66d", "#7d4e00"),
    "title-background": Role("behind the title line", "#171d26", "#ebe7de", is_text=False),
    "state-ok": Role("all is well", "#4ade9e", "#00694a"),
    "state-decode": Role("generating", "#4ade9e", "#00694a"),
    "state-prefill": Role("reading the prompt", "#66b8ff", "#0a559e"),
    "state-waiting": Role("waiting for its turn", "#c4a7ff", "#6236b8"),
    "state-finished": Role("over", "#94a1b2", "#565e69"),
    "state-warning": Role("look at this", "#ffab5c", "#964400"),
    "state-error": Role("broken", "#ff8577", "#b01c12"),
    "band-border": Role("frames", "#3d4856", "#b9b3a6", is_text=False),
    "band-selected": Role("the frame of what the keys act on", "#ffc66d", "#7d4e00", is_text=False),
    "context-cached": Role("prompt tokens taken from the cache", "#6672c9", "#5a5fb4", is_text=False),
    "context-prefilled": Role("prompt tokens computed", "#66b8ff", "#0a66bd", is_text=False),
    "context-pending": Role("prompt tokens still to compute", "#2f5b84", "#9cc3e6", is_text=False),
    "context-generated": Role("generated tokens", "#4ade9e", "#00845d", is_text=False),
    "context-free": Role("room up to the limit", "#3a4350", "#c2bcae", is_text=False),
    "plot-decode": Role("decode rate, the edge of its plot", "#4ade9e", "#00845d", is_text=False),
    "plot-decode-low": Role("decode rate, what is under the edge", "#1c5a43", "#a5d8c5", is_text=False),
    "plot-prefill": Role("prefill rate, the edge of its plot", "#66b8ff", "#0a66bd", is_text=False),
    "plot-prefill-low": Role("prefill rate, what is under the edge", "#234a6d", "#b3d0ec", is_text=False),
    "plot-grid": Role("the scale of a plot", "#3a4350", "#c2bcae", is_text=False),
    "gauge-cache": Role("memory that MLX keeps for reuse", "#5e6b7c", "#98a1ad", is_text=False),
    "row-cursor": Role("behind the chosen row", "#263446", "#dcd6c8", is_text=False),
}
"""Every colour role of the console, by the name of its theme variable."""

_COLOUR_FIELDS = frozenset(
    {
        "primary",
        "secondary",
        "warning",
        "error",
        "success",
        "accent",
        "foreground",
        "background",
        "surface",
        "panel",
        "boost",
    }
)


class ThemeInvalid(ValueError):
    """A theme file cannot be used; the message names the file, the key and what is wrong."""


class LoadedThemes(msgspec.Struct, frozen=True):
    """The themes that can be used, and a sentence for each file that cannot."""

    themes: tuple[Theme, ...]
    problems: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order in which the theme key walks them."""
        return tuple(theme.name for theme in self.themes)


def load_themes(folder: Path | None = None) -> LoadedThemes:
    """All themes of a folder, the shipped one unless told otherwise; never empty and never raising."""
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    where = folder or themes_folder()
    for path in sorted(where.glob("*.toml")):
        try:
            theme = read_theme(path)
        except ThemeInvalid as error:
            problems.append(str(error))
        else:
            themes[theme.name] = theme
    if DEFAULT_THEME not in themes:
        problems.append(f"{where / DEFAULT_THEME}.toml is missing or unusable; built-in colours are used.")
        themes[DEFAULT_THEME] = fallback_theme()
    return LoadedThemes(tuple(themes.values()), tuple(problems))


def read_theme(path: Path) -> Theme:
    """The theme of one file. Raises ThemeInvalid."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeInvalid(f"{path.name}: {error}") from error
    return build_theme(document, path.name)


def build_theme(document: Mapping[str, Any], source: str) -> Theme:
    """A theme from a parsed file; roles that it leaves out get our value for dark or light. Raises ThemeInvalid."""
    if unknown := document.keys() - {"name", "dark", "colors", "variables"}:
        raise ThemeInvalid(f"{source}: unknown key {min(unknown)}; known: name, dark, [colors], [variables].")
    name, dark = document.get("name"), document.get("dark", True)
    if not isinstance(name, str) or not name or not isinstance(dark, bool):
        raise ThemeInvalid(f"{source}: name must be text and dark must be true or false.")
    colours = _read_colours(document, "colors", source)
    if unknown := colours.keys() - _COLOUR_FIELDS:
        raise ThemeInvalid(f"{source}: unknown colour {min(unknown)}; known: {', '.join(sorted(_COLOUR_FIELDS))}.")
    if "primary" not in colours:
        raise ThemeInvalid(f"{source}: [colors] must have primary.")
    variables = {**default_roles(dark), **_read_colours(document, "variables", source)}
    return Theme(name=name, dark=dark, variables=variables, **colours)


def _read_colours(document: Mapping[str, Any], table: str, source: str) -> dict[str, Any]:
    raw = document.get(table, {})
    if not isinstance(raw, dict):
        raise ThemeInvalid(f"{source}: {table} must be a table ([{table}]).")
    colours: dict[str, Any] = {}
    for key, value in cast("dict[str, object]", raw).items():
        try:
            colours[key] = Color.parse(value).hex if isinstance(value, str) else _refuse(value)
        except (ColorParseError, TypeError):
            raise ThemeInvalid(f"{source}: {key} = {value!r} is not a colour; write it as #rrggbb.") from None
    return colours


def _refuse(value: object) -> str:
    raise TypeError(value)


def default_roles(dark: bool) -> dict[str, str]:
    """Our value of every role, for a dark or a light background."""
    return {name: role.dark if dark else role.light for name, role in ROLES.items()}


def fallback_theme() -> Theme:
    """The theme that needs no file."""
    return Theme(
        name=DEFAULT_THEME,
        primary="#66b8ff",
        secondary="#8b95e8",
        warning="#ffab5c",
        error="#ff8577",
        success="#4ade9e",
        accent="#ffc66d",
        foreground="#d5dce5",
        background="#0f141b",
        surface="#171d26",
        panel="#1f2833",
        dark=True,
        variables=default_roles(True),
    )
