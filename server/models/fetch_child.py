"""Fetches one checkpoint from Hugging Face into its usual cache; a program of its own, run by `fetch`.

python -m server.models.fetch_child OWNER/NAME [REVISION]

A process, so that stopping the server ends a download at once. It prints one JSON object a line: how far it is, then
the folder or why there is none. It ends when its standard input does, which is when its parent is gone.

huggingface_hub lists and places the files. Their bytes are fetched here, into files that keep what a stopped download
has got: its own temporary files are dropped when the process ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import msgspec
from huggingface_hub import HfApi, constants, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, disable_progress_bars

from server.errors import HomebaseError, ModelNotFetched, ModelNotFound
from server.models.tensor_files import scan_checkpoint

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Weights, configuration, tokenizer and template; other formats of the same weights, and code, are left out."""
UNWANTED = ("consolidated*", "original/*", "onnx/*", "*.onnx*", "coreml/*")
"""The same weights once more, as some publish them."""
WORKERS = 4
"""Files at a time: one connection is slower than most lines."""
PIECE_BYTES = 512 * 1024
"""What is written at a time, and lost of each file when the process is stopped; huggingface_hub takes 10 MB."""
REPORT_S = 0.25


class Part(msgspec.Struct, frozen=True):
    """One file to fetch."""

    path: str
    size: int
    blob: str
    """Its name in the cache: what its content is known by."""
    is_large: bool
    """Its name is the SHA-256 of its content."""


class Meter:
    """Counts bytes on several threads."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._done = 0
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """Bytes that are here."""
        return self._done

    def add(self, count: int) -> None:
        """Some more; fewer when a server began a file anew."""
        with self._lock:
            self._done += count

    def build_bar(self) -> type[Any]:
        """What huggingface_hub takes for the class of a progress bar."""
        meter = self

        class Bar:
            def __init__(self, *_: Any, **__: Any) -> None: ...

            def __enter__(self) -> Bar:
                return self

            def __exit__(self, *_: object) -> None: ...

            def update(self, count: float | None = 1) -> None:
                meter.add(int(count or 0))

        return Bar


def main() -> None:
    """Fetch what the arguments name."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    disable_progress_bars()
    constants.DOWNLOAD_CHUNK_SIZE = PIECE_BYTES
    repo, revision = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    try:
        _say(folder=str(find_cached(repo, revision) or fetch(repo, revision)))
    except Exception as fault:  # whatever a network does to the libraries that use it: the parent tells it
        error = explain(fault, repo, revision)
        _say(error=error.message, code=error.code)
        os._exit(1)
    os._exit(0)  # without waiting for threads of the library


def find_cached(repo: str, revision: str | None) -> Path | None:
    """The folder of a checkpoint that is wholly in the cache; asks no network."""
    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True, **_patterns()))
        scan_checkpoint(folder)
    except (LocalEntryNotFoundError, HomebaseError):
        return None
    return folder if (folder / "config.json").is_file() else None


def fetch(repo: str, revision: str | None) -> Path:
    """Fetch what is not there yet. Raises what httpx, the operating system and huggingface_hub do."""
    api = HfApi()
    commit = api.model_info(repo, revision=revision).sha
    assert commit is not None, "a model without a commit"
    parts = list(_list_parts(api, repo, commit))
    if not any(part.path == "config.json" for part in parts):
        raise ModelNotFound(f"{repo} on Hugging Face has no config.json, so it is not a checkpoint that can be served.")
    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model") / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    missing = [part for part in parts if not (blobs / part.blob).exists()]
    meter = Meter(sum(part.size for part in parts))
    meter.add(meter.total - sum(part.size for part in missing) + sum(_partial_bytes(blobs, p) for p in missing))
    _check_room(blobs, meter.total - meter.done)
    _fetch_all(repo, commit, missing, blobs, meter)
    # All is in its place: this links and registers it, for this revision's name too.
    return Path(snapshot_download(repo, revision=revision, **_patterns()))


def _list_parts(api: HfApi, repo: str, commit: str) -> Iterable[Part]:
    from huggingface_hub.utils import filter_repo_objects

    found = [
        entry for entry in api.list_repo_tree(repo, recursive=True, revision=commit) if isinstance(entry, RepoFile)
    ]
    for entry in filter_repo_objects(found, key=lambda each: each.path, **_patterns()):
        large = entry.lfs is not None
        yield Part(entry.path, entry.size, entry.lfs.sha256 if entry.lfs is not None else entry.blob_id, large)


def _patterns() -> dict[str, Any]:
    return {"allow_patterns": list(WANTED), "ignore_patterns": list(UNWANTED)}


def _partial(blobs: Path, part: Part) -> Path:
    return blobs / f"{part.blob}.homebase-part"


def _partial_bytes(blobs: Path, part: Part) -> int:
    file = _partial(blobs, part)
    return min(file.stat().st_size, part.size) if file.exists() else 0


def _check_room(blobs: Path, needed: int) -> None:
    free = os.statvfs(blobs).f_bavail * os.statvfs(blobs).f_frsize
    if needed > free:
        raise ModelNotFetched(
            f"The model needs {needed / 1e9:.1f} GB more at {blobs.parent.parent}, where {free / 1e9:.1f} GB are free; "
            "make room, or set HF_HOME to a larger disk."
        )


def _fetch_all(repo: str, commit: str, missing: list[Part], blobs: Path, meter: Meter) -> None:
    """Small files first: without them large ones are of no use."""
    stop = threading.Event()
    reporter = threading.Thread(target=_report, args=(meter, stop), daemon=True)
    reporter.start()
    # Not as a context, which would wait for the other files when one has failed.
    pool = ThreadPoolExecutor(WORKERS)
    ordered = sorted(missing, key=lambda part: part.size)
    for future in as_completed([pool.submit(_fetch_part, repo, commit, part, blobs, meter) for part in ordered]):
        future.result()
    stop.set()
    reporter.join()


def _fetch_part(repo: str, commit: str, part: Part, blobs: Path, meter: Meter) -> None:
    file = _partial(blobs, part)
    have = _partial_bytes(blobs, part)
    with file.open("r+b" if have else "wb") as stream:
        stream.truncate(have)
        stream.seek(have)
        if have < part.size:
            url = hf_hub_url(repo, part.path, revision=commit)
            bar = meter.build_bar()
            http_get(url, stream, resume_size=have, headers=build_hf_headers(), expected_size=part.size, tqdm_class=bar)
    if part.is_large and _digest(file) != part.blob:
        file.unlink()
        raise ModelNotFetched(f"{part.path} of {repo} was damaged on the way; it is fetched anew at the next start.")
    file.replace(blobs / part.blob)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _report(meter: Meter, stop: threading.Event) -> None:
    while True:
        ended = stop.wait(REPORT_S)
        _say(done=meter.done, total=meter.total)
        if ended:
            return


def explain(fault: Exception, repo: str, revision: str | None) -> HomebaseError:
    """Why it could not be fetched, in a sentence."""
    if isinstance(fault, HomebaseError):
        return fault
    place = constants.ENDPOINT
    if isinstance(fault, GatedRepoError):
        return ModelNotFetched(
            f"{repo} is gated: accept its terms at {place}/{repo}, log in with `hf auth login`, and start again."
        )
    if isinstance(fault, RevisionNotFoundError):
        return ModelNotFound(f"{repo} on Hugging Face has no revision {revision!r}.")
    if isinstance(fault, RepositoryNotFoundError | HFValidationError):
        return ModelNotFound(
            f"There is no folder {repo!r} here, and no model of that name on Hugging Face that can be seen from here; "
            "if it is private, log in with `hf auth login`."
        )
    return _explain_transfer(fault, repo, place)


def _explain_transfer(fault: Exception, repo: str, place: str) -> HomebaseError:
    again = "what is here is kept, and the next start goes on from there."
    if isinstance(fault, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return ModelNotFetched(
            f"{repo} is not wholly in the cache of Hugging Face, and HF_HUB_OFFLINE forbids to fetch it."
        )
    if isinstance(fault, HfHubHTTPError):
        return ModelNotFetched(f"{place} answers {fault.response.status_code} when asked for {repo}; {again}")
    # huggingface_hub has changed its HTTP library twice; all of them are called httpx something.
    is_network = type(fault).__module__.partition(".")[0].startswith("httpx")
    if is_network or isinstance(fault, ConnectionError | LocalEntryNotFoundError):
        return ModelNotFetched(
            f"{repo} is not in the cache of Hugging Face, and {place} cannot be reached ({type(fault).__name__}): "
            f"{again}"
        )
    reason = " ".join(str(fault).split()).rstrip(".")[:240]
    return ModelNotFetched(f"{repo} could not be fetched: {reason}; {again}")


def _say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
