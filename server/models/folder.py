"""What a `[model] path` means, judged without weights: the folder, its name for clients, its config.json.

Imports neither MLX nor mlx-lm, so that a wrong path is told at once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from server.errors import CheckpointInvalid, ModelNotFound

EMBEDDED = "nano"
"""The path, and the name for clients, of the checkpoint that comes with the package."""
EMBEDDED_FOLDER = Path(__file__).parent / "nano"


def resolve_model_folder(path: str) -> Path:
    """The folder that `path` means, checked to hold a config.json.

    Raises:
        ModelNotFound: there is no such folder, or no checkpoint in it.
    """
    if path == EMBEDDED:
        return EMBEDDED_FOLDER
    folder = _expand(path)
    advice = f"Set [model] path or --model to a folder with a checkpoint, or to {EMBEDDED!r} for the embedded one."
    try:
        if not folder.is_dir():
            raise ModelNotFound(f"There is no model folder {path!r}. {advice}")
        if not (folder / "config.json").is_file():
            raise ModelNotFound(f"The folder {path!r} has no config.json, so it is not a checkpoint. {advice}")
    except (OSError, ValueError):  # names too long, not permitted, or with a null character
        raise ModelNotFound(f"The model folder {path!r} cannot be read. {advice}") from None
    return folder.resolve()


def model_name(path: str) -> str:
    """The id that clients use for the model at `path`: the folder's own name."""
    if path == EMBEDDED:
        return EMBEDDED
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
