"""What a `[model] path` means, judged without weights: the folder, its name for clients, its config.json.

Imports neither MLX nor mlx-lm, so that a wrong path is told at once.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from server.errors import CheckpointInvalid, ModelNotFound

EMBEDDED = "nano"
"""The path, and the name for clients, of the checkpoint that comes with the package."""
EMBEDDED_FOLDER = Path(__file__).parent / "nano"


HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w][\w./-]{0,95}))?")
"""OWNER/NAME, as Hugging Face names a model, with @REVISION for another than the newest one."""


class HubId(msgspec.Struct, frozen=True):
    """A model on Hugging Face."""

    repo: str
    revision: str | None = None
    """A branch, tag or commit; None is the newest one."""


def find_model(path: str) -> Path | HubId:
    """The folder that `path` means, checked to hold a config.json, or the model on Hugging Face that it names.

    A folder comes first. Nothing is asked of a network.

    Raises:
        ModelNotFound: it is neither a folder with a checkpoint nor such a name.
    """
    hub = parse_hub_id(path)
    return hub if hub is not None and not _is_there(path) else resolve_model_folder(path)


def find_drafter(path: str) -> Path | HubId | None:
    """The same for `[model] draft_path`, which may name a file, and be empty; what is there is judged when it loads."""
    if not path:
        return None
    hub = parse_hub_id(path)
    return hub if hub is not None and not _is_there(path) else _expand(path)


def parse_hub_id(path: str) -> HubId | None:
    """What `path` names on Hugging Face, by its form alone."""
    match = HUB_ID.fullmatch(path)
    return None if match is None else HubId(match["repo"], match["revision"])


def _is_there(path: str) -> bool:
    try:
        return _expand(path).exists()
    except (OSError, ValueError):
        return False


def resolve_model_folder(path: str) -> Path:
    """The folder that `path` means, checked to hold a config.json.

    Raises:
        ModelNotFound: there is no such folder, or no checkpoint in it.
    """
    if path == EMBEDDED:
        return EMBEDDED_FOLDER
    folder = _expand(path)
    advice = (
        "Set [model] path or --model to a folder with a checkpoint, to OWNER/NAME for one on Hugging Face, or to "
        f"{EMBEDDED!r} for the embedded one."
    )
    try:
        if not folder.is_dir():
            raise ModelNotFound(f"There is no model folder {path!r}. {advice}")
        if not (folder / "config.json").is_file():
            raise ModelNotFound(f"The folder {path!r} has no config.json, so it is not a checkpoint. {advice}")
    except (OSError, ValueError):  # names too long, not permitted, or with a null character
        raise ModelNotFound(f"The model folder {path!r} cannot be read. {advice}") from None
    return folder.resolve()


def model_name(path: str) -> str:
    """The id that clients use for the model at `path`: the folder's own name, or the model's without its owner."""
    if path == EMBEDDED:
        return EMBEDDED
    if (hub := parse_hub_id(path)) is not None and not _is_there(path):
        return hub.repo.partition("/")[2]
    folder = _expand(path)
    return folder.name if folder.name not in ("", "..") else folder.resolve().name


def _expand(path: str) -> Path:
    """The path with ~ filled in; left as it is when there is no such user, where pathlib would raise."""
    return Path(os.path.expanduser(path))


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json, which must be an object with a `model_type`.

    Raises:
        CheckpointInvalid: it cannot be read, is not JSON, or names no model_type.
    """
    file = folder / "config.json"
    try:
        raw = json.loads(file.read_bytes())
    except OSError as problem:
        raise CheckpointInvalid(f"{file} cannot be read: {problem.strerror}.") from None
    except (ValueError, RecursionError) as problem:  # also text that is not UTF-8
        raise CheckpointInvalid(f"{file} is not valid JSON: {problem}.") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise CheckpointInvalid(f"{file} names no model_type, so the architecture is unknown.")
    return raw
