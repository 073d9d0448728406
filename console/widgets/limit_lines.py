"""The policy editor's text, as lines: the rows of the list, the facts of one limit, the diff. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import msgspec
from rich.cells import cell_len

from console.editing import LIMITS, Draft, Editing, plan_step, short_name
from console.format import cut, cut_middle, format_bytes, pad, safe_text
from console.limit_words import (
    explain_allowed,
    explain_consequence,
    explain_origin,
    explain_running,
    file_name,
    hide_secrets,
    short_origin,
    show_measure,
    show_text,
    show_value,
    unit_of,
)
from console.widgets.lines import Line, Span, fit_line
from server.policy import Limit, LimitValue
from server.policy_store import PolicyDraft
from server.snapshot import Snapshot

MARK_WIDTH = 2
NAME_WIDTH = 23
"""The longest name of a limit, and two blanks."""

VALUE_WIDTH = 18
ORIGIN_WIDTH = 11
LABEL_WIDTH = 14

WIDE_ROW = 100
"""From this many cells a row also tells where its value comes from and when a change is felt."""

FIRST_TABLE = "policy"
"""Shown before the others: it is what the operator comes for. The rest follows in the order of the file."""


class Row(msgspec.Struct, frozen=True):
    """One row of the list: a limit, the heading of a table when `key` is empty, a blank when both are."""

    table: str
    key: str = ""
    is_meaning: bool = False
    """True for the row under a limit that says what it means."""


OWN_TABLES = "tables of your own"
"""Over limits that stand in no table, being tables themselves."""


def plan_rows(*, airy: bool = False, told: bool = False) -> tuple[Row, ...]:
    """Every limit under its table; `airy` puts a blank row between tables, `told` its meaning under each limit."""
    keys = sorted(LIMITS, key=lambda key: not key.startswith(f"{FIRST_TABLE}."))
    rows: list[Row] = []
    for key in keys:
        table = key.rpartition(".")[0] or OWN_TABLES
        if not rows or rows[-1].table != table:
            rows += [Row(""), Row(table)] if airy and rows else [Row(table)]
        rows.append(Row(table, key))
        if told:
            rows.append(Row(table, key, is_meaning=True))
    return tuple(rows)


DENSITIES = (plan_rows(airy=True, told=True), plan_rows(told=True), plan_rows(airy=True), plan_rows())
"""The list from roomy to dense; a terminal shows the first that fits whole, or scrolls the last."""


def choose_rows(height: int) -> tuple[Row, ...]:
    """The roomiest list that fits."""
    return next((rows for rows in DENSITIES if len(rows) <= height), DENSITIES[-1])


def field_span(key: str, width: int) -> tuple[int, int]:
    """Where the field of a limit opens in its row: first cell and number of cells."""
    start = MARK_WIDTH + NAME_WIDTH
    room = width - start - 1
    return start, max(4, room if LIMITS[key].kind in ("str", "list", "table") else min(VALUE_WIDTH - 1, room))


def list_lines(editing: Editing, rows: Sequence[Row], cursor: str, width: int) -> list[Line]:
    """The whole list, one line for each row."""
    return [_list_line(editing, row, row.key == cursor, width) for row in rows]


def _list_line(editing: Editing, row: Row, is_cursor: bool, width: int) -> Line:
    if not row.key:
        return _heading(row.table, width)
    if not row.is_meaning:
        return limit_line(editing, row.key, is_cursor, width)
    meaning = cut(LIMITS[row.key].description, width - MARK_WIDTH - 2)
    behind = " on-row-cursor" if is_cursor else ""
    return fit_line(
        ((" " * (MARK_WIDTH + 1), behind), (pad(meaning, width - MARK_WIDTH - 1), f"text-muted{behind}")), width
    )


def _heading(table: str, width: int) -> Line:
    if not table:
        return ((" " * width, ""),)
    name = table if table == OWN_TABLES else f"[{table}]"
    rule = "─" * max(0, width - len(name) - 3)
    return fit_line(((f" {name} ", "accent-text bold"), (rule, "plot-grid")), width)


def limit_line(editing: Editing, key: str, is_cursor: bool, width: int) -> Line:
    """One limit: cursor, name, value, and what is to be known about it."""
    limit, draft = LIMITS[key], editing.drafts.get(key)
    spans: list[Span] = [
        ("▸ " if is_cursor else "  ", "accent-text bold"),
        (pad(short_name(key), NAME_WIDTH), "bold text-strong" if is_cursor else ""),
        (pad(_value_cell(editing, limit, is_cursor), VALUE_WIDTH), _value_role(draft)),
    ]
    if width >= WIDE_ROW:
        spans.append((pad(safe_text(short_origin(_origin(editing, key))), ORIGIN_WIDTH), "text-muted"))
    room = width - sum(cell_len(text) for text, _ in spans)
    note, role = _note(editing, limit, draft, wide=width >= WIDE_ROW)
    spans.append((cut(note, room), role))
    line = fit_line(tuple(spans), width)
    return tuple((text, f"{role} on-row-cursor") for text, role in line) if is_cursor else line


def _value_cell(editing: Editing, limit: Limit, is_cursor: bool) -> str:
    draft = editing.drafts.get(limit.key)
    shown = show_text(limit, draft.text) if draft else show_value(limit, editing.current(limit.key))
    shown = safe_text(shown)
    if is_cursor and len(limit.choices) != 1 and plan_step(limit.key, editing.text(limit.key), 1) is not None:
        shown = f"◂ {shown} ▸"
    value = draft.value if draft else editing.current(limit.key)
    unit = f" {unit_of(limit, value)}" if limit.unit and value is not None else ""
    room = VALUE_WIDTH - 1 - len(unit)
    return f"{cut_middle(shown, room) if limit.kind == 'str' else cut(shown, room)}{unit}"


def _value_role(draft: Draft | None) -> str:
    if draft is None:
        return "text-strong"
    return "state-error bold" if draft.problem else "state-warning bold"


def _origin(editing: Editing, key: str) -> str:
    return editing.state.origins.get(key, "default")


def _note(editing: Editing, limit: Limit, draft: Draft | None, *, wide: bool) -> Span:
    """The one thing that matters most about a limit now."""
    if draft is not None and draft.base != editing.current(limit.key):
        return f"▲ file says {_foreign(show_value(limit, editing.current(limit.key)))}", "state-warning bold"
    if draft is not None and draft.problem is not None:
        return f"✕ allowed: {explain_allowed(limit)}", "state-error"
    if draft is not None:
        return f"← was {_foreign(show_value(limit, draft.base))}", "state-warning"
    if wide:
        return f"takes effect {limit.effect}", "text-muted"
    return _foreign(short_origin(_origin(editing, limit.key))), "text-muted"


def _foreign(text: str) -> str:
    return cut(safe_text(text), 40)


def detail_lines(editing: Editing, key: str, snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """All that is known of one limit; in few rows the sentences stay and the table goes into one."""
    limit = LIMITS[key]
    meaning = wrap(limit.description, width, "text-strong")
    verdict = [line for span in verdicts(editing, key, snapshot) for line in wrap(span[0], width, span[1])]
    facts = _fact_table(editing, limit, snapshot, width)
    full = [*meaning, (), *facts, *([()] if verdict else []), *verdict]
    if len(full) <= height:
        return full
    return [*verdict, *meaning, *_fact_sentence(editing, limit, snapshot, width)][:height]


def verdicts(editing: Editing, key: str, snapshot: Snapshot) -> list[Span]:
    """What has to be said about the draft of a limit, most urgent first; about its value when there is no draft."""
    limit, draft = LIMITS[key], editing.drafts.get(key)
    told: list[Span] = []
    if draft is not None and draft.base != editing.current(key):
        theirs = safe_text(show_value(limit, editing.current(key)))
        told.append((f"▲ Changed in the file as well, to {theirs}. Saving asks which to keep.", "state-warning"))
    if draft is not None and draft.problem is not None:
        told.append((f"✕ {safe_text(draft.problem.removeprefix(f'{key}: '))}", "state-error"))
    value = draft.value if draft is not None else None
    if value is not None and (consequence := explain_consequence(key, value, snapshot)) is not None:
        told.append((f"▲ {consequence}", "state-warning"))
    if draft is None and (running := explain_running(key, snapshot)) is not None:
        told.append((f"◌ {safe_text(running)}", "state-waiting"))
    return told


def _facts(editing: Editing, limit: Limit, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    yield "allowed", explain_allowed(limit)
    if (draft := editing.drafts.get(limit.key)) is not None:
        yield "typed", show_text(limit, draft.text)
    yield "in force", _in_force(limit, editing.current(limit.key), snapshot)
    yield "from", explain_origin(_origin(editing, limit.key))
    yield "default", _with_unit(limit, limit.default, snapshot)
    yield "takes effect", str(limit.effect)


def _in_force(limit: Limit, value: LimitValue, snapshot: Snapshot) -> str:
    """The value, and what the server has made of it where it was left to the server."""
    memory = snapshot.memory
    chosen = {
        "engine.memory_budget_gib": memory.budget_bytes,
        "engine.prefix_cache_gib": memory.prefix_cache_budget_bytes,
    }
    if value == -1 and (amount := chosen.get(limit.key)):
        return f"{show_value(limit, value)}, which is {format_bytes(amount)} now"
    return _with_unit(limit, value, snapshot)


def _with_unit(limit: Limit, value: LimitValue, snapshot: Snapshot) -> str:
    if limit.key == "policy.max_context_tokens" and value == 0 and snapshot.model.context_limit_tokens:
        return f"0, the model's own {snapshot.model.context_limit_tokens:,} tokens"
    return show_measure(limit, value)


def _fact_table(editing: Editing, limit: Limit, snapshot: Snapshot, width: int) -> list[Line]:
    lines: list[Line] = []
    for name, text in _facts(editing, limit, snapshot):
        first, *rest = wrap(safe_text(text), max(8, width - LABEL_WIDTH)) or [()]
        lines.append(((pad(name, LABEL_WIDTH), "text-muted"), *first))
        lines += [((" " * LABEL_WIDTH, ""), *line) for line in rest]
        if name == "allowed" and (dial := dial_line(editing, limit, width - LABEL_WIDTH)):
            lines.append(((" " * LABEL_WIDTH, ""), *dial))
    return lines


def dial_line(editing: Editing, limit: Limit, width: int) -> Line:
    """Where the value in force (○ once it is edited) and the typed one (●) are in the allowed range; empty for text.

    Wide ranges are drawn by powers, so that 256 of 16,384 is not at the very edge.
    """
    draft, current = editing.drafts.get(limit.key), editing.current(limit.key)
    size = min(width - 1, 32)
    if limit.minimum is None or limit.maximum is None or size < 8:
        return ()
    cells = ["─"] * size
    for value, sign in ((current, "○" if draft else "●"), (draft.value if draft else None, "●")):
        if isinstance(value, int | float):
            cells[_dial_place(value, limit.minimum, limit.maximum, size)] = sign
    shown = "".join(cells)
    return tuple((part, _DIAL_ROLES.get(part, "plot-grid")) for part in re.split("([○●])", shown) if part)


_DIAL_ROLES = {"●": "accent-text bold", "○": "text-muted"}


def _dial_place(value: float, low: float, high: float, size: int) -> int:
    if high - low > 100:
        value, low, high = (math.log1p(max(0.0, number)) for number in (value, low, high))
    return round(min(max((value - low) / (high - low), 0.0), 1.0) * (size - 1))


def _fact_sentence(editing: Editing, limit: Limit, snapshot: Snapshot, width: int) -> list[Line]:
    told = [f"{name} {text}" for name, text in _facts(editing, limit, snapshot) if name != "typed"]
    return wrap(safe_text(" · ".join(told)), width, "text-muted")


def diff_lines(editing: Editing, draft: PolicyDraft | None, width: int, height: int) -> list[Line]:
    """What saving would write, or why nothing would be; in few rows the changed lines stay and those around go."""
    lines: list[Line] = []
    if editing.invalid:
        names = ", ".join(short_name(item.key) for item in editing.invalid)
        lines += wrap(f"✕ Not valid, and not in this diff: {names}", width, "state-error")
    if draft is not None and draft.problem is not None:
        lines += wrap(f"✕ {safe_text(draft.problem)}", width, "state-error")
    for note in draft.notes if draft is not None else ():
        lines += wrap(f"▲ {safe_text(note)}", width, "state-warning")
    if not editing.changes:
        return lines or wrap("Nothing to save. Values shown are in force.", width, "text-muted")
    if draft is None:
        return [*lines, *wrap("…", width, "text-muted")]
    diff = hide_secrets(draft.diff).splitlines()
    if len(lines) + len(diff) > height:
        diff = [line for line in diff if line.startswith(("-", "+"))]
    shown = [_diff_line(line, width) for line in diff]
    return [*lines, *(shown or wrap("The file already says so; saving leaves it as it is.", width, "text-muted"))]


def _diff_line(text: str, width: int) -> Line:
    role = {"+": "state-ok", "-": "state-error", "@": "text-muted"}.get(text[:1], "text-muted")
    return ((cut(safe_text(text), width), role),)


def wrap(text: str, width: int, role: str = "") -> list[Line]:
    """The text in lines of at most `width` cells, broken at blanks; longer words are cut into pieces."""
    lines: list[str] = []
    here = ""
    for word in text.split(" "):
        joined = f"{here} {word}" if here else word
        if cell_len(joined) <= width:
            here = joined
            continue
        if here:
            lines.append(here)
        *full, here = _pieces(word, width)
        lines += full
    return [((line, role),) for line in [*lines, here] if line]


def _pieces(word: str, width: int) -> Sequence[str]:
    pieces, here = [], ""
    for character in word:
        if cell_len(here + character) > max(1, width):
            pieces.append(here)
            here = ""
        here += character
    return [*pieces, here]


def told_lines(editing: Editing, told: tuple[str, str] | None, width: int, most_rows: int = 4) -> list[Line]:
    """What is wrong with the file, what its values warn of, and what was told last, which always has its place."""
    last: list[Line] = []
    if told is not None:
        symbol, text = told
        role = {"✕": "state-error", "▲": "state-warning"}.get(symbol, "state-ok")
        last = wrap(f"{symbol} {safe_text(text)}", width, role)[:most_rows]
    standing: list[Line] = []
    if (problem := editing.state.problem) is not None and editing.is_file_broken:
        kept = f"✕ {safe_text(problem)} The policy before it stays in force; nothing is saved until it is mended."
        standing += wrap(kept, width, "state-error")
    elif problem is not None:
        standing += wrap(f"▲ {safe_text(problem)}", width, "state-warning")
    for warning in editing.state.warnings:
        standing += wrap(f"▲ {safe_text(warning)}", width, "state-warning")
    return [*standing[: most_rows - len(last)], *last]


def summary_line(editing: Editing, width: int) -> Line:
    """How the edit stands: file, changes not saved, what is not valid, what is in conflict."""
    told: list[Span] = []
    changed, invalid, conflicts = len(editing.drafts), len(editing.invalid), len(editing.conflicts)
    if changed:
        told.append((f"  ▲ {changed} not saved", "state-warning bold"))
    if invalid:
        told.append((f"  ✕ {invalid} not valid", "state-error bold"))
    if conflicts:
        told.append((f"  ▲ {conflicts} in conflict", "state-warning bold"))
    if editing.is_file_broken:
        told.append(("  ✕ file not valid", "state-error bold"))
    elif editing.state.problem is not None:
        told.append(("  ▲ file gone", "state-warning bold"))
    elif not editing.state.exists:
        told.append(("  ◌ no file yet: saving creates it", "state-waiting"))
    elif not told:
        told.append(("  ● nothing unsaved", "state-ok"))
    room = width - sum(cell_len(text) for text, _ in told) - 1
    shown = safe_text(editing.state.path)
    if cell_len(shown) > room:
        shown = safe_text(file_name(editing.state))
    return fit_line(((" ", ""), (cut_middle(shown, max(8, room)), "text-strong"), *told), width)
