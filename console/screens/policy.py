"""The policy editor: every limit with its meaning, typed and judged in place, and what saving would write.

What was typed lives in an `Editing`; the file is written by the server alone, and nothing is called saved before it
has answered.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Button
from textual.worker import Worker, WorkerState

from console.editing import LIMITS, Editing, list_differences, short_name, write_text
from console.format import count_noun, safe_text
from console.limit_words import (
    explain_differences,
    explain_drafts,
    explain_saved,
    file_name,
    show_text,
)
from console.screens.dialogs import ConfirmDialog, ConflictDialog
from console.source import Source
from console.widgets.keybar import KeyBar
from console.widgets.limit_field import LimitField
from console.widgets.limit_lines import detail_lines, diff_lines, summary_line, told_lines
from console.widgets.limit_table import LimitTable
from console.widgets.lines import Lines
from console.widgets.title import TitleLine
from server.errors import HomebaseError, PolicyConflict
from server.policy_store import PolicyDraft, PolicyState
from server.snapshot import Snapshot

_RELOAD_LOOKS = 40
_RELOAD_PAUSE_S = 0.05
"""A refused save waits 2 s for the server to read the file that got in its way; noticing takes well under 1 s."""

_ROUNDS = 3
"""Saves tried in a row when others keep changing the file; then the operator is told and may try again."""


class PolicyScreen(Screen[None]):
    """Shows and edits homebase.toml through a `Source`."""

    AUTO_FOCUS = "LimitTable"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s,ctrl+s,f2", "save", "Save", id="policy.save", tooltip="Write the file and put it in force."),
        Binding("x,delete", "drop", "Drop edit", id="policy.drop", tooltip="Show this limit's value in force again."),
        Binding("r,ctrl+r,f4", "revert", "Revert", id="policy.revert", tooltip="Drop every unsaved edit; asks first."),
        Binding("u,f5", "undo", "Undo save", id="policy.undo", tooltip="Take the last save back, in the file too."),
        Binding("d", "default", "Default", id="policy.default", tooltip="Type the default of this limit."),
        Binding("escape,h", "back", "Streams", show=False, id="policy.back", tooltip="Streams; edits stay, not saved."),
    ]

    # Scrollbars are drawn with block characters; the application sizes them for all, which only CSS outranks.
    CSS = """
    PolicyScreen.-ascii LimitTable, PolicyScreen.-ascii #policy-diff { scrollbar-size-vertical: 0; }
    """

    DEFAULT_CSS = """
    PolicyScreen { layout: vertical; }
    PolicyScreen #policy-bar { height: 1; }
    PolicyScreen #policy-bar Button {
        height: 1; min-width: 8; padding: 0 1; margin-right: 1; border: none; background: $panel; color: $foreground;
        text-style: none;
        &:hover { background: $panel-lighten-2; }
        &:focus { background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold; }
        &:disabled { color: $text-muted; text-style: strike; text-opacity: 100%; opacity: 100%; }
    }
    PolicyScreen #policy-told { padding: 0 1; }
    PolicyScreen .policy-panel { border: round $band-border; border-title-color: $text-strong; padding: 0 1; }
    PolicyScreen .policy-panel:focus-within, PolicyScreen .policy-panel:focus { border: heavy $band-selected; }
    PolicyScreen.-ascii .policy-panel, PolicyScreen.-ascii .policy-panel:focus-within { border: ascii $band-border; }
    PolicyScreen #policy-list { padding: 0; }
    PolicyScreen #policy-body { height: 1fr; layout: horizontal; }
    PolicyScreen #policy-list { width: 3fr; height: 1fr; }
    PolicyScreen #policy-side { width: 2fr; height: 1fr; layout: vertical; }
    PolicyScreen #policy-detail { height: 3fr; }
    PolicyScreen #policy-diff { height: 2fr; scrollbar-size-vertical: 1; }

    PolicyScreen.-wide #policy-side { layout: horizontal; }
    PolicyScreen.-wide #policy-list { width: 10fr; }
    PolicyScreen.-wide #policy-side { width: 9fr; }
    PolicyScreen.-wide #policy-detail { width: 1fr; height: 1fr; }
    PolicyScreen.-wide #policy-diff { width: 1fr; height: 1fr; }

    PolicyScreen.-narrow #policy-body { layout: vertical; }
    PolicyScreen.-narrow #policy-list { width: 1fr; }
    PolicyScreen.-narrow #policy-side { width: 1fr; height: auto; }
    PolicyScreen.-narrow #policy-detail { height: 7; }
    PolicyScreen.-narrow #policy-diff { height: 5; display: none; }
    PolicyScreen.-narrow.-edited #policy-diff { display: block; }
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]
        self._source = source
        self._snapshot = source.snapshot()
        self._preview: PolicyDraft | None = None
        self._told: tuple[str, str] | None = None
        self._saving = False
        self.editing = Editing(source.policy())
        """What is typed and not saved, over the policy in force."""

    @property
    def unsaved_edits(self) -> int:
        """How many limits have a text that is not saved; they survive leaving the screen, not quitting."""
        return len(self.editing.drafts)

    def compose(self) -> ComposeResult:
        """Title, summary with its buttons, the list, the facts of one limit, the diff."""
        yield TitleLine("policy")
        with Horizontal(id="policy-bar"):
            yield Lines(id="policy-summary")
            yield Button("Save", id="policy-save")
            yield Button("Revert", id="policy-revert")
            yield Button("Undo save", id="policy-undo")
        yield Lines(id="policy-told")
        with Horizontal(id="policy-body"):
            with Vertical(id="policy-list", classes="policy-panel") as panel:
                panel.border_title = "limits"
                yield LimitTable(self.editing)
            with Vertical(id="policy-side"):
                with Vertical(id="policy-detail", classes="policy-panel"):
                    yield Lines()
                with VerticalScroll(id="policy-diff", classes="policy-panel") as panel:
                    panel.border_title = "what saving writes"
                    yield Lines()
        yield KeyBar()

    def on_mount(self) -> None:
        """Draw what is known; the application's timer brings the rest."""
        self.set_class(self.app.has_class("-ascii"), "-ascii")
        self._redraw()

    def on_resize(self, event: events.Resize) -> None:
        """Lines are built for a width, which is known after the layout."""
        self.call_after_refresh(self._redraw)

    def on_screen_resume(self) -> None:
        """Shown again: the policy may have moved meanwhile."""
        self.call_after_refresh(self.refresh_view, self._source.snapshot())

    def refresh_view(self, snapshot: Snapshot) -> None:
        """Show a snapshot, and take in a policy that was changed elsewhere."""
        self._snapshot = snapshot
        self.query_one(TitleLine).show(snapshot)
        state = self._source.policy()
        if state is not self.editing.state and not self._saving:
            self._take_in(state)
        else:
            self._draw_detail()

    def _take_in(self, state: PolicyState) -> None:
        """Something else than this screen changed the policy, or broke or mended its file."""
        before, self.editing = self.editing, self.editing.adopted(state)
        file = file_name(state)
        if self.editing.conflicts:
            self._tell(
                "▲", f"{file} changed underneath: {_names(self.editing)}. Save asks which to keep; x takes the file's."
            )
        elif changed := list_differences(before.state.policy, state.policy):
            self._tell("●", f"{file} changed elsewhere, in force now: {explain_differences(changed)}")
        elif before.state.problem is not None and state.problem is None:
            self._tell("●", f"{file} is valid again.")
        self._redraw(preview=True)

    def _redraw(self, *, preview: bool = False) -> None:
        if not self.is_mounted:
            return
        editing = self.editing
        self.set_class(bool(editing.drafts), "-edited")
        self.query_one(LimitTable).show_editing(editing)
        summary = self.query_one("#policy-summary", Lines)
        summary.show_lines([summary_line(editing, summary.size.width)])
        self._draw_buttons()
        self._draw_told()
        self._draw_detail()
        self._draw_diff()
        self.refresh_bindings()
        if preview:
            self.run_worker(self._load_preview, exclusive=True, group="policy-preview", exit_on_error=False)

    def _draw_buttons(self) -> None:
        refusal = self.editing.refusal
        save = self.query_one("#policy-save", Button)
        save.disabled = refusal is not None or self._saving
        save.tooltip = refusal and safe_text(refusal)
        self.query_one("#policy-revert", Button).disabled = not self.editing.drafts
        self.query_one("#policy-undo", Button).disabled = not self.editing.state.can_undo

    def _draw_told(self) -> None:
        width = max(20, self.size.width - 2)
        self.query_one("#policy-told", Lines).show_lines(told_lines(self.editing, self._told, width))

    def _draw_detail(self) -> None:
        panel = self.query_one("#policy-detail", Vertical)
        key = self.query_one(LimitTable).cursor_key
        panel.border_title = key
        area = panel.content_size
        panel.query_one(Lines).show_lines(detail_lines(self.editing, key, self._snapshot, area.width, area.height))

    def _draw_diff(self) -> None:
        panel = self.query_one("#policy-diff", VerticalScroll)
        area = panel.scrollable_content_region
        panel.query_one(Lines).show_lines(diff_lines(self.editing, self._preview, area.width, area.height))

    async def _load_preview(self) -> None:
        """Ask the server what saving would write; an exclusive worker, so the newest question wins."""
        changes = self.editing.changes
        if not changes:
            self._preview = None
        else:
            try:
                self._preview = await self._source.draft(changes)
            except HomebaseError as error:
                self._preview = PolicyDraft(diff="", etag="", problem=error.message)
        self.call_after_refresh(self._draw_diff)

    def _tell(self, symbol: str, text: str) -> None:
        self._told = (symbol, text)
        if self.is_mounted:
            self._draw_told()
        if not self.is_current:
            self.app.notify(safe_text(text), severity="error" if symbol == "✕" else "information", markup=False)

    @on(LimitTable.Moved)
    def _show_moved(self) -> None:
        self._draw_detail()

    @on(LimitTable.Typed)
    def _take_typed(self, event: LimitTable.Typed) -> None:
        self._told = None
        self.editing = self.editing.typed(event.key, event.text)
        self._redraw(preview=True)

    @on(LimitTable.NotHere)
    def _explain_table(self) -> None:
        key, file = self.query_one(LimitTable).cursor_key, file_name(self.editing.state)
        self._tell("▲", f"{key} has names of your own in it: edit it in {file}, which is noticed at once.")

    @on(LimitField.PasteRefused)
    def _explain_paste(self, event: LimitField.PasteRefused) -> None:
        self._tell("✕", f"{event.lines} lines were pasted and a limit takes one, so nothing was inserted.")

    def action_default(self) -> None:
        """Type the default for the limit under the cursor."""
        key = self.query_one(LimitTable).cursor_key
        if LIMITS[key].kind == "table":
            self._explain_table()
        else:
            self._take_typed(LimitTable.Typed(key, write_text(LIMITS[key].default)))

    def action_drop(self) -> None:
        """Drop the edit of the limit under the cursor."""
        table = self.query_one(LimitTable)
        draft = self.editing.drafts.get(table.cursor_key)
        if draft is None:
            return
        table.action_close()
        self.editing = self.editing.dropped(draft.key)
        self._tell("●", f"{short_name(draft.key)}: edit to {show_text(LIMITS[draft.key], draft.text)} dropped.")
        self._redraw(preview=True)

    def action_revert(self) -> None:
        """Ask, then drop every edit."""
        if self.editing.drafts:
            self.run_worker(self._revert, exclusive=True, group="policy-revert", exit_on_error=False)

    async def _revert(self) -> None:
        count = len(self.editing.drafts)
        typed = safe_text(explain_drafts(tuple(self.editing.drafts.values())))
        question = f"Not saved: {typed}.\n\nThe values in force come back."
        if not await self.app.push_screen_wait(
            ConfirmDialog(f"Revert {count_noun(count, 'edit')}?", question, "Revert", "Keep editing")
        ):
            return
        self.query_one(LimitTable).action_close()
        self.editing = self.editing.reverted()
        self._tell("●", f"{count_noun(count, 'edit')} dropped; the values shown are in force.")
        self._redraw(preview=True)

    def action_back(self) -> None:
        """Back to the streams; edits stay."""
        self.app.switch_mode("streams")

    def action_save(self) -> None:
        """Save what is typed, or say why that cannot be."""
        if self._saving:
            return
        if (refusal := self.editing.refusal) is not None:
            self._tell("▲" if not self.editing.drafts else "✕", refusal)
            return
        self.query_one(LimitTable).action_close()
        self._saving = True
        self._draw_buttons()
        self.run_worker(self._save, group="policy-save", exit_on_error=False)

    async def _save(self) -> None:
        try:
            for _ in range(_ROUNDS):
                if self.editing.conflicts and not await self._settle_conflicts():
                    return
                if self.editing.refusal is not None or await self._save_once():
                    return
            self._tell("✕", f"{file_name(self.editing.state)} keeps changing; your edits are kept. Save again.")
        finally:
            self._saving = False
            self._redraw(preview=True)

    async def _save_once(self) -> bool:
        """One try; False when the file had changed and it is worth trying on the new ground."""
        changes = self.editing.changes
        try:
            state = await self._source.save(changes, self.editing.state.etag)
        except PolicyConflict as conflict:
            return not await self._catch_up(conflict)
        except HomebaseError as error:
            self._tell("✕", f"Not saved: {error.message} Your edits are kept.")
            return True
        self.editing = self.editing.settled(state, changes)
        self._tell("●", explain_saved(changes, state))
        return True

    async def _catch_up(self, conflict: PolicyConflict) -> bool:
        """Wait until the server has read the changed file; False, with the reason told, when it does not."""
        seen = self.editing.state
        for _ in range(_RELOAD_LOOKS):
            if (state := self._source.policy()) is not seen:
                self._take_in(state)
                if conflict.keys and not self.editing.conflicts:
                    break  # Under a flag the file may have changed while the value in force did not.
                return True
            await asyncio.sleep(_RELOAD_PAUSE_S)
        self._tell("✕", f"Not saved: {conflict.message} Your edits are kept.")
        return False

    async def _settle_conflicts(self) -> bool:
        """Ask about limits that were changed on both sides; False when the save is off."""
        answer = await self.app.push_screen_wait(ConflictDialog(self.editing))
        if answer == "cancel":
            self._tell(
                "▲", f"Not saved: {_names(self.editing)}. Save asks again; x takes the file's value of one limit."
            )
            return False
        kept = self.editing.conflicts
        self.editing = self.editing.insisted() if answer == "mine" else self.editing.yielded()
        if not self.editing.drafts:
            self._tell("●", f"The file's values stay in force; {count_noun(len(kept), 'edit')} dropped.")
        return bool(self.editing.drafts)

    def action_undo(self) -> None:
        """Take this console's last save back."""
        if self._saving:
            return
        if not self.editing.state.can_undo:
            self._tell("▲", "There is no save to undo: none was made in this run, or the file changed since.")
            return
        self._saving = True
        self._draw_buttons()
        self.run_worker(self._undo, group="policy-save", exit_on_error=False)

    async def _undo(self) -> None:
        before = self.editing.state
        try:
            state = await self._source.undo()
        except HomebaseError as error:
            self._tell("✕", f"Not undone: {error.message}")
        else:
            self.editing = self.editing.settled(state, {})
            changed = explain_differences(list_differences(before.policy, state.policy))
            self._tell("●", f"Last save undone in {file_name(state)}: {changed or 'no value in force changed'}")
        finally:
            self._saving = False
            self._redraw(preview=True)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A worker that broke says so here: the edit is kept and the console goes on."""
        if event.state is WorkerState.ERROR:
            error = event.worker.error
            self._tell("✕", f"That did not work ({type(error).__name__}: {error}). Your edits are kept.")

    @on(Button.Pressed)
    def _press(self, event: Button.Pressed) -> None:
        event.stop()
        match event.button.id:
            case "policy-save":
                self.action_save()
            case "policy-revert":
                self.action_revert()
            case _:
                self.action_undo()


def _names(editing: Editing) -> str:
    named = ", ".join(short_name(draft.key) for draft in editing.conflicts)
    return f"{named} changed on both sides"
