"""The shipped homebase.toml says of every limit what the limit says of itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from server.policy import Limit, Policy, list_limits, read_limit, validate_policy
from server.policy_file.edit import edit_text
from server.policy_file.template import build_template, write_default

FILE = Path(__file__).parents[2] / "homebase.toml"


def test_template_sets_every_limit_to_its_default() -> None:
    tables = tomllib.loads(build_template())
    assert validate_policy(tables) == Policy()
    # An empty list of tables has no line of its own.
    assert [f"{line}" for line in _list_keys(tables)] == [
        limit.key for limit in list_limits() if limit.key != "upstreams"
    ]


def test_file_of_the_repository_is_the_template_but_for_its_values() -> None:
    """Written anew by: python -c "from server.policy_file.template import *; print(build_template(), end='')"."""
    text = FILE.read_text(encoding="utf-8")
    values = validate_policy(tomllib.loads(text))
    changed = {limit.key: read_limit(values, limit.key) for limit in list_limits() if limit.kind != "table"}
    assert edit_text(build_template(), changed) == text


@pytest.mark.parametrize("limit", list_limits(), ids=lambda limit: limit.key)
def test_comment_above_a_limit_gives_meaning_range_default_and_effect(limit: Limit) -> None:
    lines = build_template().splitlines()
    table, _, name = limit.key.rpartition(".")
    setting = f"[{limit.key}]" if limit.kind == "table" else f"{name} = "
    setting = "# [[upstreams]]" if limit.key == "upstreams" else setting
    first = lines.index(f"[{table}]") if table else 0
    found = [n for n in range(first, len(lines)) if lines[n].startswith(setting)]
    at = found[-1] if limit.key == "upstreams" else found[0]
    start = max(n for n in range(at) if not lines[n])
    comment = " ".join(line.removeprefix("# ") for line in lines[start + 1 : at])
    assert limit.description in comment
    assert f"Allowed: {limit.allowed}{f' {limit.unit}' if limit.unit else ''}." in comment
    assert f"Default: {write_default(limit)}." in comment
    assert f"Takes effect {limit.effect}." in comment


def _list_keys(tables: dict[str, object], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in tables.items():
        keys += _list_keys(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [f"{prefix}{name}"]
    return keys
