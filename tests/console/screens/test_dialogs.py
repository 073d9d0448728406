"""Dialogs: the harmless answer in focus, the verb on the button, keyboard and mouse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from textual.screen import ModalScreen

from console.app import HomebaseApp
from console.editing import Editing
from console.screens.dialogs import Choice, ConfirmDialog, ConflictDialog, QuitDialog, name_choices
from server.policy import validate_policy


def confirm() -> ConfirmDialog:
    return ConfirmDialog("Stop s-41?", "Its client is told by an error event.", "Stop it")


@pytest.fixture
def check_answers(make_app: Callable[..., HomebaseApp], source: Any) -> Callable[..., Any]:
    """Opens a fresh dialog for each row, presses its keys, and compares the answer."""

    async def check(build: Callable[[], ModalScreen[Any]], *rows: tuple[str, Any]) -> None:
        app = make_app(source)
        async with app.run_test(size=(80, 24)) as pilot:
            for keys, expected in rows:
                answers: list[Any] = []
                app.push_screen(build(), answers.append)
                await pilot.pause()
                await pilot.press(*keys.split())
                await pilot.pause()
                assert answers == [expected], keys

    return check


def conflict(source: Any) -> ConflictDialog:
    changed = msgspec.structs.replace(source.state, policy=validate_policy({"policy": {"max_in_flight": 3}}))
    editing = Editing(source.state).typed("policy.max_in_flight", "4").adopted(changed)
    return ConflictDialog(editing)


async def test_confirm_answers(check_answers: Any) -> None:
    rows = (("enter", False), ("escape", False), ("right enter", True), ("tab space", True), ("l h enter", False))
    rows += (("s", True), ("c", False), ("right c", False), ("x z 1 c", False))
    await check_answers(confirm, *rows)


async def test_quit_answers(check_answers: Any) -> None:
    await check_answers(lambda: QuitDialog(2, 1), ("enter", "cancel"), ("escape", "cancel"), ("right enter", "cut"))
    await check_answers(lambda: QuitDialog(2, 1), ("s", "cancel"), ("c", "cut"))
    await check_answers(lambda: QuitDialog(0, 1), ("s", "cancel"), ("q", "cut"))


async def test_conflict_answers(check_answers: Any, source: Any) -> None:
    rows = (("enter", "cancel"), ("escape", "cancel"), ("right enter", "file"), ("right right enter", "mine"))
    rows += (("c", "cancel"), ("t", "file"), ("m", "mine"))
    await check_answers(lambda: conflict(source), *rows)


def test_every_choice_has_a_letter_of_its_own_that_moves_nothing() -> None:
    named = name_choices(
        [Choice("a", "Keep editing"), Choice("b", "Edit"), Choice("c", "Delete it"), Choice("d", "Do")]
    )
    assert [choice.key for choice in named] == ["e", "", "d", ""]


async def test_the_letters_stand_on_the_buttons(
    make_app: Callable[..., HomebaseApp], source: Any, read_screen: Callable[[Any], str]
) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(confirm())
        await pilot.pause()
        assert " c Cancel " in read_screen(app)
        assert " s Stop it " in read_screen(app)


async def test_a_dialog_says_the_consequence_and_takes_the_mouse(
    make_app: Callable[..., HomebaseApp], source: Any, read_screen: Callable[[Any], str]
) -> None:
    app = make_app(source)
    answers: list[Any] = []
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(confirm(), answers.append)
        await pilot.pause()
        assert "Its client is told by an error event." in read_screen(app)
        assert app.focused is not None
        assert app.focused.id == "cancel"
        await pilot.click("#confirm")
        await pilot.pause()
    assert answers == [True]


async def test_quitting_names_what_is_lost(
    make_app: Callable[..., HomebaseApp], source: Any, read_screen: Callable[[Any], str]
) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        for streams, edits, words, verb in (
            (1, 0, "1 stream is open. Quitting cuts it now", "Cut and quit"),
            (2, 0, "2 streams are open. Quitting cuts them now", "Cut and quit"),
            (0, 1, "1 policy edit not saved", "Quit"),
            (0, 3, "3 policy edits not saved", "Quit"),
        ):
            app.push_screen(QuitDialog(streams, edits))
            await pilot.pause()
            assert words in read_screen(app)
            assert f" {verb} " in read_screen(app)
            await pilot.press("escape")


async def test_quitting_asks_while_edits_are_not_saved(
    make_app: Callable[..., HomebaseApp], source: Any, samples: Any, read_screen: Callable[[Any], str]
) -> None:
    source.shown = samples.empty()
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3", "right", "1", "q")
        await pilot.pause()
        assert isinstance(app.screen, QuitDialog)
        assert "1 policy edit not saved: lost when you quit." in read_screen(app)


async def test_foreign_text_in_a_dialog_is_no_markup(
    make_app: Callable[..., HomebaseApp], source: Any, read_screen: Callable[[Any], str]
) -> None:
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(ConfirmDialog("Stop [b]x?", "client [red]evil[/] $x", "Stop it"))
        await pilot.pause()
        assert "client [red]evil[/] $x" in read_screen(app)


async def test_a_long_text_scrolls_and_keeps_its_buttons_in_sight(
    make_app: Callable[..., HomebaseApp], source: Any, read_screen: Callable[[Any], str]
) -> None:
    app = make_app(source)
    async with app.run_test(size=(60, 16)) as pilot:
        app.push_screen(ConfirmDialog("Stop?", "\n".join(f"line {i}" for i in range(40)), "Stop it"))
        await pilot.pause()
        assert "Stop it" in read_screen(app)
        await pilot.press(*("down" for _ in range(40)))
        await pilot.pause()
        assert "line 39" in read_screen(app)
        assert "Stop it" in read_screen(app)


async def test_looks(
    make_app: Callable[..., HomebaseApp], source: Any, snap: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HomebaseApp, "DEFAULT_MODE", "log")
    app = make_app(source)
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(QuitDialog(2, 1))
        await pilot.pause()
        await pilot.pause()
        snap(app, "quit-dialog")
