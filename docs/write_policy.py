"""Writes what is generated from the table of limits: homebase.toml's template, and the tables of docs/policy.md.

uv run python docs/write_policy.py
"""

from __future__ import annotations

from pathlib import Path

from server.policy import Limit, list_limits
from server.policy_file.template import build_template, write_default

ROOT = Path(__file__).parent.parent
MARK = "<!-- written by docs/write_policy.py from here on -->"


def render_tables() -> str:
    """Every limit as a row, a table per section of the file."""
    lines: list[str] = []
    section = ""
    for limit in list_limits():
        here = limit.key.rpartition(".")[0]
        if here != section:
            section = here
            lines += [
                "",
                f"## [{section}]" if section else "## Tables of your own",
                "",
                "| limit | default | allowed | takes effect | meaning |",
            ]
            lines += ["|---|---|---|---|---|"]
        lines.append(render_row(limit))
    return "\n".join(lines) + "\n"


def render_row(limit: Limit) -> str:
    """One limit."""
    allowed = f"{limit.allowed} {limit.unit}".rstrip()
    return f"| `{limit.key}` | `{write_default(limit)}` | {allowed} | {limit.effect} | {limit.description} |"


def main() -> None:
    """Rewrite both files. The template loses values that were edited in a checkout: it is what is shipped."""
    page = ROOT / "docs" / "policy.md"
    head = page.read_text().partition(MARK)[0]
    page.write_text(f"{head}{MARK}\n{render_tables()}")
    (ROOT / "homebase.toml").write_text(build_template())


if __name__ == "__main__":
    main()
