"""What tells one set of weights from another without reading them whole: for state that outlives the process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from server.models.regular_file import open_regular

SAMPLES = 16
SAMPLE_BYTES = 4096
"""Of each weights file, so many places of so many bytes are read, and its beginning: a fine-tune whose files carry the
times of the original has other values everywhere."""

HEAD_BYTES = 65536


def fingerprint_weights(folder: Path, drafter: Path | None = None) -> str:
    """A hash of names, sizes, times of change, headers and samples of values: of a checkpoint, and of its drafter.

    The times find an edit of a few values that no sample meets. A copy with other times is taken for another model:
    state is computed again, which costs time, where state of other weights would cost right text.
    """
    digest = hashlib.blake2b(digest_size=16)
    for place in (folder, *(() if drafter is None else (drafter,))):
        digest.update(b"model\n" if place is folder else b"drafter\n")
        for path in _list_files(place):
            digest.update(_describe(path, place))
    return digest.hexdigest()


def _list_files(place: Path) -> Iterator[Path]:
    """Regular files alone: opening a pipe would wait for its other end."""
    if place.is_file():
        yield place
        return
    named = (*place.rglob("*.safetensors"), place / "config.json", place / "model.safetensors.index.json")
    yield from sorted(path for path in named if path.is_file())


def _describe(path: Path, place: Path) -> bytes:
    """What is known of a file; of one that cannot be read, which nobody will load, its name."""
    name = str(path.relative_to(place))
    try:
        status = path.stat()
        digest = hashlib.blake2b(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode(), digest_size=16)
        with open_regular(path) as file:
            digest.update(file.read(HEAD_BYTES))
            for sample in range(SAMPLES):
                file.seek(status.st_size * sample // SAMPLES)
                digest.update(file.read(SAMPLE_BYTES))
    except OSError:
        return f"{name} cannot be read\n".encode()
    return digest.digest()
