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
from server.engine.prefix.folder import (
    SUFFIX,
    StoredFile,
    delete_file,
    is_other,
    list_files,
    list_folder,
    list_others,
    sweep_parts,
)
from server.engine.prefix.index import Index, Link, name_prefix
from server.engine.prefix.payload import Point, SpanRows
from server.engine.prefix.pieces import Piece, build_piece, divide, gather, read_span
from server.engine.prefix.tree import TOKEN_BYTES, Node
from server.models.scheduling import schedule_plainly
from server.models.tensor_files import list_names

FORMAT = "homebase-prefix-1"
"""Changed with whatever makes older files unreadable."""

PENDING_BYTES = 2**30
"""What may wait to be written; more is left for the next time. It is held in memory."""

RETRY_S = 60.0
"""After a fault in writing, nothing is written for so long."""

PRIVATE = 0o700

log = logging.getLogger(__name__)


class _Job(msgspec.Struct, frozen=True):
    link: Link
    notes: dict[str, str]
    tensors: dict[str, HostTensor]


class _Limit(msgspec.Struct, frozen=True):
    """What waits in the queue of the writer when there is less room than there was."""


class DiskTier:
    """One model's files. Called on the engine thread.

    The limit is for the files of all models, and for those of other servers that share the folder. They are counted
    anew before each file is written, so that two servers together pass it by no more than what is being written.
    """

    def __init__(self, root: Path, identity: str, folder_name: str, budget_bytes: int) -> None:
        self._root, self._folder, self._identity = root, root / folder_name, identity
        self._budget_bytes = budget_bytes
        self._index = Index()
        self._lock = threading.Lock()  # over the index and what waits
        self._pending_bytes = 0
        self._pending: set[str] = set()
        self._others: set[str] = set()
        """Ids at whose place there is no file, but something else."""
        self._quiet_until_s = 0.0
        self._jobs: SimpleQueue[_Job | _Limit | None] = SimpleQueue()
        self._written: SimpleQueue[_Job] = SimpleQueue()
        self._make_folder()
        self._scan()
        self._jobs.put(_Limit())  # it may be a lower one than what is there was written under
        self._thread = threading.Thread(target=self._write_all, name="homebase-prefix-disk", daemon=True)
        self._thread.start()

    @property
    def nbytes(self) -> int:
        """Bytes of this model's files."""
        with self._lock:
            return self._index.nbytes

    def limit(self, budget_bytes: int) -> None:
        """Keep to another limit from now on."""
        self._budget_bytes = budget_bytes
        self._jobs.put(_Limit())

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
            if link_id in self._pending | self._others or (there is not None and (there.has_point or point is None)):
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
                self._make_room(0) if isinstance(job, _Limit) else self._write(job)
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
            if isinstance(job, _Limit):
                continue
            with self._lock:
                self._pending.discard(job.link.id)
                self._pending_bytes -= job.link.nbytes
            self._written.put(job)
            del job

    def _write(self, job: _Job) -> None:
        path = self._path(job.link.id)
        if is_other(path):
            self._leave_alone([path.name])
            return
        if time.monotonic() < self._quiet_until_s or not self._make_room(job.link.nbytes):
            return
        self._make_folder()
        size = write_file(path, job.notes, job.tensors)
        with self._lock:
            self._index.add(msgspec.structs.replace(job.link, nbytes=size))

    def _make_folder(self) -> None:
        """For this user alone: conversations could be made out from what is in it."""
        self._root.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        self._folder.mkdir(exist_ok=True, mode=PRIVATE)

    def _make_room(self, wanted_bytes: int) -> bool:
        """Delete files, those used longest ago first, whoever wrote them, until so much more fits; False if never."""
        if wanted_bytes > self._budget_bytes:
            return False
        strangers = sorted(self._find_strangers(), key=lambda each: each.used_s)
        strange_bytes = sum(each.nbytes for each in strangers)
        while True:
            with self._lock:
                held, oldest = self._index.nbytes, self._index.find_oldest()
            if held + strange_bytes + wanted_bytes <= self._budget_bytes:
                return True
            if strangers and (oldest is None or strangers[0].used_s <= oldest.used_s):
                stranger = strangers.pop(0)
                if delete_file(stranger.path):
                    strange_bytes -= stranger.nbytes
            elif oldest is not None:
                self._forget(oldest.id)
                delete_file(self._path(oldest.id))
            else:
                return False

    def _find_strangers(self) -> list[StoredFile]:
        """Files that the index does not have: of other models, older weights, other servers. It forgets what is gone.

        On the writer's thread, which alone puts links into the index.
        """
        with self._lock:
            gone = set(self._index.ids)
        strangers: list[StoredFile] = []
        for file in list_files(self._root):
            if file.path.parent == self._folder and file.path.stem in gone:
                gone.discard(file.path.stem)
            else:
                strangers.append(file)
        for link_id in gone:
            self._forget(link_id)
        return strangers

    def _scan(self) -> None:
        """Read the headers of what is there."""
        sweep_parts(self._root)
        self._leave_alone(list_others(self._folder))
        for file in list_folder(self._folder):
            path = file.path
            try:
                notes = read_header(path).notes
                self._check(notes, path.stem)
                first, end, drafted, *_ = read_span(notes)
                has_point = notes["has_point"] == "1"
                self._index.add(
                    Link(path.stem, notes["parent"], first, end, drafted, has_point, file.nbytes, file.used_s)
                )
            except (OSError, FileBroken, ValueError, LookupError) as fault:
                self._drop(path, path.stem, str(fault))

    def _leave_alone(self, names: Sequence[str]) -> None:
        """Neither read nor write what has a file's name and is none."""
        if not names:
            return
        with self._lock:
            self._others.update(name.removesuffix(SUFFIX) for name in names)
        log.warning(
            "In the folder of the prefix cache, %s, these are no regular files and are left alone: %s.",
            self._folder, list_names(names),
        )  # fmt: skip

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
        delete_file(path)

    def _forget(self, link_id: str) -> None:
        with self._lock:
            self._index.drop(link_id)

    def _path(self, link_id: str) -> Path:
        return self._folder / f"{link_id}{SUFFIX}"
