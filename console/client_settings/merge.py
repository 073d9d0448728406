"""Settings into the text of a file that has others, with all of its own words kept. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any, cast

import tomli_w
import tomlkit
from tomlkit.exceptions import TOMLKitError

from console.client_settings.shape import Format
from server.errors import StartupError

PASTE = "Put the printed settings into it by hand, or name another file with --path."


def write_settings(values: Mapping[str, Any], format: Format) -> str:
    """The text of a file that says nothing else."""
    match format:
        case "toml":
            return tomli_w.dumps(values)
        case "json":
            return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        case "yaml":
            return _write_yaml(values)


def merge_settings(text: str, values: Mapping[str, Any], format: Format, name: str) -> str:
    """The text with these values in it. Raises StartupError for a text that they cannot be put into safely."""
    if format == "yaml":
        raise StartupError(f"{name} is YAML, which is not merged here. {PASTE}")
    if not text.strip():
        return write_settings(values, format)
    return _merge_toml(text, values, name) if format == "toml" else _merge_json(text, values, name)


def overlay(ground: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`ground` with the values on top, table by table."""
    merged = dict(ground)
    for name, value in values.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = overlay(cast("Mapping[str, Any]", below), cast("Mapping[str, Any]", value))
        else:
            merged[name] = value
    return merged


def _merge_toml(text: str, values: Mapping[str, Any], name: str) -> str:
    try:
        before = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{name} is not valid TOML ({error}). Nothing was changed.") from None
    wanted = overlay(before, values)
    if wanted == before:
        return text
    refusal = StartupError(f"{name} is written in a way that cannot be edited here. {PASTE}")
    try:
        document = tomlkit.parse(text)
        _put(cast("MutableMapping[str, Any]", document), values)
        merged = tomlkit.dumps(document)
        if tomllib.loads(merged) != wanted:
            raise refusal
    except (TOMLKitError, ValueError, TypeError, KeyError, AttributeError):
        raise refusal from None
    return merged


def _put(table: MutableMapping[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        below = table.get(name)
        if isinstance(value, Mapping) and isinstance(below, MutableMapping):
            _put(cast("MutableMapping[str, Any]", below), cast("Mapping[str, Any]", value))
        elif below != value:
            table[name] = value


def _merge_json(text: str, values: Mapping[str, Any], name: str) -> str:
    try:
        before = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        if re.search(r"^\s*//|/\*|,\s*[\]}]", text, re.MULTILINE):
            raise StartupError(
                f"{name} has comments or commas that plain JSON has not; they would be lost. {PASTE}"
            ) from None
        raise StartupError(f"{name} is not valid JSON ({error}). Nothing was changed.") from None
    if not isinstance(before, dict):
        raise StartupError(f"{name} is not an object of JSON. {PASTE}")
    wanted = overlay(cast("dict[str, Any]", before), values)
    if wanted == before:
        return text
    indent = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    ending = "\n" if text.endswith("\n") else ""
    return json.dumps(wanted, indent=indent[1] if indent else 2, ensure_ascii=False) + ending


def _write_yaml(values: Mapping[str, Any]) -> str:
    """Lists of tables, as far as our own settings go; JSON's strings are YAML's too."""
    lines: list[str] = []
    for name, items in values.items():
        lines.append(f"{name}:")
        for item in items:
            fields = [f"{key}: {json.dumps(value)}" for key, value in item.items()]
            lines += [f"  {'-' if index == 0 else ' '} {field}" for index, field in enumerate(fields)]
    return "\n".join(lines) + "\n"
