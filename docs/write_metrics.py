"""Writes the tables of docs/metrics.md from the table of metrics.

uv run python docs/write_metrics.py
"""

from __future__ import annotations

from pathlib import Path

from server.metrics.families import FAMILIES, Family

PAGE = Path(__file__).parent / "metrics.md"
MARK = "<!-- written by docs/write_metrics.py from here on -->"


def render_tables() -> str:
    """Every metric as a row: those with vLLM's names, then our own."""
    lines: list[str] = []
    for title, prefix in (("vLLM's names", "vllm:"), ("Our own", "homebase_")):
        lines += ["", f"## {title}", "", "| metric | kind | labels | buckets | meaning |", "|---|---|---|---|---|"]
        lines += [render_row(family) for family in FAMILIES if family.name.startswith(prefix)]
    return "\n".join(lines) + "\n"


def render_row(family: Family) -> str:
    """One metric."""
    labels = ", ".join(f"`{label}`" for label in family.labels)
    buckets = f"{family.bounds[0]:g} to {family.bounds[-1]:g}" if family.bounds else ""
    return f"| `{family.name}` | {family.kind} | {labels} | {buckets} | {family.help} |"


def main() -> None:
    """Rewrite what stands below the mark."""
    head = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n{render_tables()}")


if __name__ == "__main__":
    main()
