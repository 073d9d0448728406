"""Where shipped files are: in a checkout beside the packages, in a wheel under `console/_data`."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def themes_folder() -> Path:
    """The folder of shipped themes."""
    return _shipped("themes")


def config_template() -> Path:
    """The commented homebase.toml that a new one is made from."""
    return _shipped("homebase.toml")


def _shipped(name: str) -> Path:
    packed = _PACKAGE / "_data" / name
    return packed if packed.exists() else _PACKAGE.parent / name
