"""Where the second tier's files are, and which of them are of this very model."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import platformdirs

from server.engine.prefix.disk import DiskTier
from server.models.cache import ModelFacts


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
    return json.dumps([facts.id, facts.architecture, facts.dtype, facts.quantization, facts.fingerprint])
