"""Shipped themes are complete and readable; a bad file is told and never stops the console."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path

import pytest
from textual.color import Color

from console.assets import themes_folder
from console.themes import DEFAULT_THEME, ROLES, ThemeInvalid, build_theme, load_themes

SHIPPED = load_themes()
LEAST_CONTRAST = 4.5
GRAPHIC_CONTRAST = 1.2
"""Bars and grids are told by number and word beside them; they only must not vanish."""


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast of two colours, from their own relative luminance."""

    def luminance(colour: Color) -> float:
        parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour.normalized]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(Color.parse(one)), luminance(Color.parse(other))), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_agrees_with_the_known_ends() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_the_shipped_themes_load_without_a_word() -> None:
    assert SHIPPED.problems == ()
    assert {"homebase-dark", "homebase-light", "homebase-contrast"} <= set(SHIPPED.names)
    assert {theme.dark for theme in SHIPPED.themes} == {True, False}


@pytest.mark.parametrize("name", SHIPPED.names)
def test_every_word_is_readable_on_everything_it_stands_on(name: str) -> None:
    theme = next(theme for theme in SHIPPED.themes if theme.name == name)
    colours = {**theme.to_color_system().generate(), **theme.variables}
    texts = [role for role, facts in ROLES.items() if facts.is_text] + ["foreground", "text-warning", "text-error"]
    grounds = ["background", "surface", "panel", "title-background", "row-cursor"]
    poor = {
        (text, ground): round(contrast(colours[text], colours[ground]), 2)
        for text, ground in itertools.product(texts, grounds)
        if contrast(colours[text], colours[ground]) < LEAST_CONTRAST
    }
    assert poor == {}


@pytest.mark.parametrize("name", SHIPPED.names)
def test_reversed_words_are_readable_too(name: str) -> None:
    theme = next(theme for theme in SHIPPED.themes if theme.name == name)
    assert theme.background is not None
    assert contrast(theme.variables["accent-text"], theme.background) >= LEAST_CONTRAST


@pytest.mark.parametrize("name", SHIPPED.names)
def test_bars_and_frames_do_not_vanish(name: str) -> None:
    theme = next(theme for theme in SHIPPED.themes if theme.name == name)
    assert theme.background is not None
    for role, facts in ROLES.items():
        if not facts.is_text and role not in {"title-background", "row-cursor"}:
            assert contrast(theme.variables[role], theme.background) >= GRAPHIC_CONTRAST, role


@pytest.mark.parametrize("path", sorted(themes_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_a_shipped_file_names_every_role_and_its_own_name(path: Path) -> None:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    assert document["name"] == path.stem
    assert set(document["variables"]) == set(ROLES)


def check_refused(document: dict[str, object], said: str) -> None:
    with pytest.raises(ThemeInvalid, match=said):
        build_theme(document, "mine.toml")


def test_a_bad_theme_says_what_is_wrong() -> None:
    good: dict[str, object] = {"name": "mine", "colors": {"primary": "#123456"}}
    assert build_theme(good, "mine.toml").variables["state-ok"] == ROLES["state-ok"].dark
    check_refused({**good, "colours": {}}, "unknown key colours")
    check_refused({**good, "colors": {"primary": "#12345"}}, "primary = '#12345' is not a colour")
    check_refused({**good, "colors": {"primary": 3}}, "primary = 3 is not a colour")
    check_refused({**good, "colors": {"primry": "red"}}, "unknown colour primry")
    check_refused({**good, "colors": {}}, r"must have primary")
    check_refused({**good, "colors": "red"}, "must be a table")
    check_refused({**good, "dark": "yes"}, "dark must be true or false")
    check_refused({**good, "name": ""}, "name must be text")


def test_a_broken_file_is_told_and_the_others_stay(tmp_path: Path) -> None:
    (tmp_path / "homebase-dark.toml").write_text((themes_folder() / "homebase-dark.toml").read_text())
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    loaded = load_themes(tmp_path)
    assert loaded.names == ("homebase-dark",)
    assert [problem.partition(":")[0] for problem in loaded.problems] == ["broken.toml", "bytes.toml"]


def test_an_empty_folder_leaves_built_in_colours(tmp_path: Path) -> None:
    loaded = load_themes(tmp_path)
    assert loaded.names == (DEFAULT_THEME,)
    assert "built-in" in loaded.problems[0]


def test_a_light_theme_that_leaves_roles_out_gets_the_light_ones() -> None:
    theme = build_theme({"name": "paper", "dark": False, "colors": {"primary": "blue"}}, "paper.toml")
    assert theme.variables["state-error"] == ROLES["state-error"].light
