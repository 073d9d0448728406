"""Where the second tier's files are, and which of them are of this very model."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import platformdirs

from server.engine.prefix.disk import DiskTier
from server.models.cache import ModelFacts

SAMPLES = 16
SAMPLE_BYTES = 4096
"""Of each weights file, so many places of so many bytes are read, and its beginning: a fine-tune has the same names
and shapes, and other values everywhere."""

HEAD_BYTES = 65536


def find_root() -> Path:
    """The folder for all models' files."""
    return platformdirs.user_cache_path("homebase-console") / "prefix"


def open_tier(facts: ModelFacts, budget_bytes: int) -> DiskTier:
    """The files of a loaded model. Raises OSError."""
    identity = build_identity(facts)
    digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", facts.id)[:64].lstrip(".")
    return DiskTier(find_root(), identity, f"{name}-{digest}", budget_bytes)


def build_identity(facts: ModelFacts) -> str:
    """What files must have been made by to be of use: the model, its weights, and how these are computed with."""
    return json.dumps(
        [facts.id, facts.architecture, facts.dtype, facts.quantization, fingerprint_weights(Path(facts.path))]
    )


def fingerprint_weights(folder: Path) -> str:
    """A hash that tells weights apart: of names and sizes, of headers, and of samples of the values."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted([*folder.rglob("*.safetensors"), *folder.glob("config.json")]):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(HEAD_BYTES))
            for place in range(SAMPLES):
                file.seek(size * place // SAMPLES)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
