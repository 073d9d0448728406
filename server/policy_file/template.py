"""The shipped homebase.toml: every limit with its meaning, range, unit, default and when a change is felt."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from server.policy import Limit, list_limits
from server.policy_file.edit import write_value

_WIDTH = 112
"""Columns of a comment line, `# ` left out."""

_HEAD = (
    "What homebase-console may do. Edit it here or in the console (key 3); each notices the other.",
    "The whole file is checked before a change counts: while it is not in order, the limits in force stay. "
    "The console changes values in place and keeps comments and layout. A flag such as --port goes before this file "
    "for one run and is never written here. A limit that is left out has its default.",
)

_TABLES = {
    "server": "Where the API listens and whom it answers.",
    "model": "Which checkpoint is served.",
    "engine": "How the engine spends its steps.",
    "policy": "When a request may start. Everything here can be changed while streams run; none is cut by it.",
    "policy.subagents": "What children of an agent may do.",
    "console": "How the console looks.",
    "history": "What is remembered of requests after they are over: facts and figures, never their text.",
}


def build_template() -> str:
    """The text of homebase.toml with every limit at its default."""
    parts = [line for paragraph in _HEAD for line in _comment(paragraph)]
    table = ""
    for limit in list_limits():
        here = limit.key.rpartition(".")[0]
        if here and here != table:
            table = here
            parts += ["", *_comment(_TABLES[table]), f"[{table}]"]
        parts += ["", *describe_limit(limit), _write_setting(limit)]
    return "\n".join(parts) + "\n"


def _write_setting(limit: Limit) -> str:
    if limit.kind != "table":
        return f"{limit.key.rpartition('.')[2]} = {write_value(limit.default)}"
    # An empty list of tables cannot be written but as a value, which would have to stand in front of all tables.
    return "# [[upstreams]]" if limit.key == "upstreams" else f"[{limit.key}]"


def describe_limit(limit: Limit) -> Iterator[str]:
    """The comment lines above a limit: its meaning, then range with unit, default, and when a change is felt."""
    yield from _comment(limit.description)
    unit = f" {limit.unit}" if limit.unit else ""
    default = write_default(limit)
    yield from _comment(f"Allowed: {limit.allowed}{unit}. Default: {default}. Takes effect {limit.effect}.")


def write_default(limit: Limit) -> str:
    """A limit's default as the file has it."""
    return "none" if limit.kind == "table" else write_value(limit.default)


def _comment(text: str) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False))
