"""Where homebase.toml is: the order in which it is looked for, the same for every command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from server.errors import StartupError


def find_config(flag: str | None, environ: Mapping[str, str], folder: Path) -> Path:
    """Where homebase.toml is, or will be made at the first save: see `--help` for the order."""
    named = flag or environ.get("HOMEBASE_CONFIG")
    if named:
        return _check_config(Path(named).expanduser(), "--config" if flag else "$HOMEBASE_CONFIG")
    local = folder / "homebase.toml"
    return local if local.exists() else user_config()


def user_config() -> Path:
    """homebase.toml in the user's configuration folder, there or not."""
    import platformdirs

    return platformdirs.user_config_path("homebase-console", appauthor=False) / "homebase.toml"


def _check_config(path: Path, origin: str) -> Path:
    """A file that will be made at the first save is fine; a folder that is not there is a typing mistake."""
    if path.is_dir():
        raise StartupError(f"{origin} names the folder {path}; name the file in it, e.g. {path / 'homebase.toml'}.")
    if not path.absolute().parent.is_dir():
        raise StartupError(f"{origin} names {path}, but there is no folder {path.parent}.")
    return path
