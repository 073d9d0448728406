"""The prefix cache's second tier: files that survive a restart. Written on a thread of its own.

Whatever is wrong with a file, it is dropped and said so; whatever is wrong with the disk, the cache goes on in memory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

import msgspec

from server.engine.prefix.files import FileBroken, HostTensor, read_file, read_header, write_file
from server.engine.prefix.index import Index, Link, name_prefix
from server.engine.prefix.payload import Point, SpanRows
from server.engine.prefix.pieces import Piece, build_piece, divide, gather, read_span
from server.engine.prefix.tree import TOKEN_BYTES, Node
from server.models.scheduling import schedule_plainly

FORMAT = "homebase-prefix-1"
"""Changed with whatever makes older files unreadable."""

PENDING_BYTES = 2**30
"""What may wait to be written; more is left for the next time. It is held in memory."""

RETRY_S = 60.0
"""After a fault in writing, nothing is written for so long."""

STALE_PART_S = 3600.0
PRIVATE = 0o700

log = logging.getLogger(__name__)


class _Job(msgspec.Struct, frozen=True):
    link: Link
    notes: dict[str, str]
    tensors: dict[str, HostTensor]


class DiskTier:
    """One model's files. Called on the engine thread."""

    def __init__(self, root: Path, identity: str, folder_name: str, budget_bytes: int) -> None:
        self._root, self._folder, self._identity = root, root / folder_name, identity
        self._budget_bytes = budget_bytes
        self._index = Index()
        self._lock = threading.Lock()  # over the index and what waits
        self._pending_bytes = 0
        self._pending: set[str] = set()
        self._quiet_until_s = 0.0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._written: SimpleQueue[_Job] = SimpleQueue()
        self._make_folder()
        self._scan()
        self._thread = threading.Thread(target=self._write_all, name="homebase-prefix-disk", daemon=True)
        self._thread.start()

    @property
    def nbytes(self) -> int:
        """Bytes of this model's files."""
        with self._lock:
            return self._index.nbytes

    def read_next(self, tokens: bytes, limit: int, drafted: bool, common: int, point_end: int) -> Piece | None:
        """The next file along packed tokens, up to the deepest point within `limit` of them.

        Memory has the rows of the first `common` tokens, and a point after `point_end`. A file that cannot be used is
        dropped, and there is nothing then.
        """
        with self._lock:
            line = self._index.find_line(tokens, limit, drafted)
            self._index.touch(line, time.time())
        if not line or line[-1].end <= point_end:
            return None
        link = next((each for each in line if each.end > common), line[-1])
        path = self._path(link.id)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)
            return self._read(link, path)
        except FileNotFoundError:
            self._forget(link.id)  # another server with the same model may have dropped it
        except (OSError, FileBroken, msgspec.MsgspecError, ValueError, LookupError) as fault:
            self._drop(path, link.id, str(fault))
        return None

    def save(self, line: Sequence[Node], drafted: bool) -> None:
        """Have a path written, up to its last point, as far as it is not there yet."""
        while not self._written.empty():
            self._written.get_nowait()  # arrays are let go of on the thread that made them
        if time.monotonic() < self._quiet_until_s:
            return
        last = max((place for place, node in enumerate(line) if node.point is not None), default=-1)
        tokens = b"".join(node.key for node in line[: last + 1])
        for node in line[: last + 1]:
            assert isinstance(node.rows, SpanRows)
            assert node.point is None or isinstance(node.point, Point)
            for rows, point in divide(node.rows, node.point):
                if not self._submit(tokens, rows, point, drafted):
                    return

    def drop_line(self, tokens: bytes) -> None:
        """Drop every file that packed tokens go through: what was made of them did not work."""
        for drafted in (True, False):
            with self._lock:
                line = self._index.find_line(tokens, len(tokens), drafted)
            for link in line:
                self._drop(self._path(link.id), link.id, "no state could be made of it")

    def close(self, timeout_s: float) -> None:
        """Write what waits, at most so long."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _submit(self, tokens: bytes, rows: SpanRows, point: Point | None, drafted: bool) -> bool:
        """Queue one file unless it is there; False when nothing more may wait."""
        link_id = name_prefix(tokens[: rows.end * TOKEN_BYTES], drafted)
        with self._lock:
            there = self._index.find(link_id)
            if link_id in self._pending or (there is not None and (there.has_point or point is None)):
                return True
            nbytes = rows.nbytes + (point.nbytes if point else 0)
            if self._pending_bytes + nbytes > min(PENDING_BYTES, self._budget_bytes):
                return False
            self._pending.add(link_id)
            self._pending_bytes += nbytes
        parent = name_prefix(tokens[: rows.first * TOKEN_BYTES], drafted)
        link = Link(link_id, parent, rows.first, rows.end, drafted, point is not None, nbytes, time.time())
        self._jobs.put(_Job(link, self._describe(link, rows, point), gather(rows, point)))
        return True

    def _describe(self, link: Link, rows: SpanRows, point: Point | None) -> dict[str, str]:
        return {
            "format": FORMAT,
            "identity": self._identity,
            "tokens": link.id,
            "parent": link.parent,
            "span": f"{link.first} {link.end} {int(link.drafted)} {len(rows.model)} {len(rows.head)}",
            "point": "" if point is None else json.dumps(point.fixed.notes),
            "has_point": str(int(link.has_point)),
        }

    def _write_all(self) -> None:
        schedule_plainly()
        while (job := self._jobs.get()) is not None:
            try:
                self._write(job)
            except OSError as fault:
                self._quiet_until_s = time.monotonic() + RETRY_S
                full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
                reason = "the disk is full" if full else fault.strerror or str(fault)
                log.warning(
                    "The prefix cache cannot be written to %s: %s. It goes on in memory, and on disk in %g s if that "
                    "is over.", self._folder, reason, RETRY_S,
                )  # fmt: skip
            except Exception:
                log.exception("a file of the prefix cache could not be made")
            with self._lock:
                self._pending.discard(job.link.id)
                self._pending_bytes -= job.link.nbytes
            self._written.put(job)
            del job

    def _write(self, job: _Job) -> None:
        if time.monotonic() < self._quiet_until_s or not self._make_room(job.link.nbytes):
            return
        self._make_folder()
        size = write_file(self._path(job.link.id), job.notes, job.tensors)
        with self._lock:
            self._index.add(msgspec.structs.replace(job.link, nbytes=size))

    def _make_folder(self) -> None:
        """For this user alone: conversations could be made out from what is in it."""
        self._root.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        self._folder.mkdir(exist_ok=True, mode=PRIVATE)

    def _make_room(self, wanted_bytes: int) -> bool:
        """Delete files, those used longest ago first, other models' among them, until so much more fits."""
        others = sorted(self._list_others(), key=lambda each: each[0])
        others_bytes = sum(size for _, size, _ in others)
        while True:
            with self._lock:
                held, oldest = self._index.nbytes, self._index.find_oldest()
            if held + others_bytes + wanted_bytes <= self._budget_bytes:
                return True
            if others and (oldest is None or others[0][0] <= oldest.used_s):
                _, size, path = others.pop(0)
                others_bytes -= size
                path.unlink(missing_ok=True)
            elif oldest is not None:
                self._path(oldest.id).unlink(missing_ok=True)
                self._forget(oldest.id)
            else:
                return False

    def _list_others(self) -> list[tuple[float, int, Path]]:
        """When they were last used, size and place of files of other models or older weights."""
        found: list[tuple[float, int, Path]] = []
        for path in self._root.glob("*/*.safetensors"):
            if path.parent != self._folder:
                with contextlib.suppress(OSError):
                    status = path.stat()
                    found.append((status.st_mtime, status.st_size, path))
        return found

    def _scan(self) -> None:
        """Read the headers of what is there."""
        for path in self._folder.glob(".*.part"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_PART_S:
                    path.unlink()
        for path in self._folder.glob("*.safetensors"):
            try:
                notes = read_header(path).notes
                self._check(notes, path.stem)
                first, end, drafted, *_ = read_span(notes)
                status, has_point = path.stat(), notes["has_point"] == "1"
                link = Link(path.stem, notes["parent"], first, end, drafted, has_point, status.st_size, status.st_mtime)
                self._index.add(link)
            except (OSError, FileBroken, ValueError, LookupError) as fault:
                self._drop(path, path.stem, str(fault))

    def _check(self, notes: Mapping[str, str], link_id: str) -> None:
        """Raise FileBroken unless a file is of this format, model and weights, and named by its tokens."""
        for name, wanted in (("format", FORMAT), ("identity", self._identity), ("tokens", link_id)):
            if notes.get(name) != wanted:
                raise FileBroken(f"its {name} is {notes.get(name, 'missing')[:80]} in place of {wanted[:80]}")

    def _read(self, link: Link, path: Path) -> Piece:
        notes, tensors = read_file(path)
        self._check(notes, link.id)
        first, end, drafted, *_ = read_span(notes)
        if (first, end, drafted, notes["parent"]) != (link.first, link.end, link.drafted, link.parent):
            raise FileBroken("it is not the file that was there before")
        return build_piece(notes, tensors)

    def _drop(self, path: Path, link_id: str, reason: str) -> None:
        log.warning("A file of the prefix cache is dropped, %s: %s.", path.name, reason)
        self._forget(link_id)
        with contextlib.suppress(OSError):
            path.unlink()

    def _forget(self, link_id: str) -> None:
        with self._lock:
            self._index.drop(link_id)

    def _path(self, link_id: str) -> Path:
        return self._folder / f"{link_id}.safetensors"
