"""The file itself: whole or not at all, with its mode, owner, attributes and links."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from server.errors import PolicyConflict, PolicyInvalid, PolicyUnwritable
from server.policy_file import replace as policy_replace
from server.policy_file.replace import LARGEST_BYTES, hold_folder, list_hops, read_bytes, replace_bytes

OLD, NEW = b"old\n", b"new\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "homebase.toml"
    path.write_bytes(OLD)
    return path


def save(path: Path, data: bytes | None = NEW, expected: bytes | None = OLD) -> None:
    with hold_folder(path) as locked:
        replace_bytes(path, data, expected, locked=locked)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def check_refused(path: Path, said: str, data: bytes = NEW, expected: bytes | None = OLD) -> None:
    before = names(path.parent)
    with pytest.raises(PolicyUnwritable) as caught:
        save(path, data, expected)
    assert said in caught.value.message
    assert caught.value.message.endswith("Nothing was changed.")
    assert "\n" not in caught.value.message
    assert read_bytes(path) == expected
    assert names(path.parent) == before


def test_missing_file_reads_as_none(tmp_path: Path) -> None:
    assert read_bytes(tmp_path / "none.toml") is None
    assert read_bytes(tmp_path / "no folder" / "none.toml") is None


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    (tmp_path / "circle.toml").symlink_to("circle.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * (LARGEST_BYTES + 1))
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, pipe, tmp_path / "circle.toml", tmp_path / "big.toml", tmp_path / "file" / "x.toml"):
        with pytest.raises(PolicyInvalid) as caught:
            read_bytes(path)
        assert caught.value.message.startswith(f"{path.name}: ")


@pytest.mark.parametrize("umask", [0o022, 0o077])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_mode_stays_whatever_the_umask(file: Path, mode: int, umask: int) -> None:
    file.chmod(mode)
    before = os.umask(umask)
    try:
        save(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == mode
    assert file.read_bytes() == NEW


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_created_file_has_the_mode_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    path = tmp_path / "deep" / "er" / "homebase.toml"
    before = os.umask(umask)
    try:
        save(path, expected=None)
    finally:
        os.umask(before)
    assert path.read_bytes() == NEW
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_owner_and_group_stay(file: Path) -> None:
    os.chown(file, 4321, 8765)
    file.chmod(0o640)
    save(file)
    assert (file.stat().st_uid, file.stat().st_gid, stat.S_IMODE(file.stat().st_mode)) == (4321, 8765, 0o640)


@pytest.mark.skipif(sys.platform != "linux", reason="Python reads extended attributes on Linux only")
def test_extended_attributes_stay(file: Path) -> None:
    try:
        os.setxattr(file, "user.note", b"mine")
    except OSError:
        pytest.skip("this disk keeps no extended attributes")
    save(file)
    assert os.getxattr(file, "user.note") == b"mine"


def test_links_stay_links_over_two_relative_hops(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "real.toml").write_bytes(OLD)
    (tmp_path / "dotfiles" / "homebase.toml").symlink_to("../real.toml")
    link = tmp_path / "here" / "homebase.toml"
    link.symlink_to("../dotfiles/homebase.toml")
    save(link)
    assert os.readlink(link) == "../dotfiles/homebase.toml"
    assert os.readlink(tmp_path / "dotfiles" / "homebase.toml") == "../real.toml"
    assert (tmp_path / "real.toml").read_bytes() == NEW
    assert not (tmp_path / "real.toml").is_symlink()
    assert [hop.name for hop in list_hops(link)] == ["homebase.toml", "homebase.toml", "real.toml"]


def test_file_in_a_linked_folder_is_replaced_there(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "homebase.toml").write_bytes(OLD)
    (tmp_path / "linked").symlink_to("real")
    save(tmp_path / "linked" / "homebase.toml")
    assert (tmp_path / "linked").is_symlink()
    assert (tmp_path / "real" / "homebase.toml").read_bytes() == NEW
    assert names(tmp_path / "real") == ["homebase.toml"]


def test_dangling_link_gets_its_target_and_stays(tmp_path: Path) -> None:
    link = tmp_path / "homebase.toml"
    link.symlink_to("real.toml")
    save(link, expected=None)
    assert os.readlink(link) == "real.toml"
    assert (tmp_path / "real.toml").read_bytes() == NEW


def test_dangling_link_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "homebase.toml"
    link.symlink_to("nowhere/real.toml")
    check_refused(link, "whose folder is missing", expected=None)
    assert not (tmp_path / "nowhere").exists()


def test_removing_takes_the_target_and_leaves_the_link(tmp_path: Path) -> None:
    link = tmp_path / "homebase.toml"
    link.symlink_to("real.toml")
    (tmp_path / "real.toml").write_bytes(OLD)
    save(link, None)
    assert link.is_symlink()
    assert not (tmp_path / "real.toml").exists()


def test_hard_link_is_refused_with_the_reason(file: Path, tmp_path: Path) -> None:
    os.link(file, tmp_path / "other.toml")
    check_refused(file, "2 hard links")
    assert (tmp_path / "other.toml").read_bytes() == OLD


def test_read_only_file_is_refused(file: Path) -> None:
    file.chmod(0o444)
    check_refused(file, "the file is read-only (mode 444)")


@pytest.mark.parametrize(("flags", "said"), [(os.ST_RDONLY, "its disk is mounted read-only"), (0, "permission denied")])
def test_file_that_only_its_place_keeps_from_being_written_is_not_called_read_only(
    file: Path, monkeypatch: pytest.MonkeyPatch, flags: int, said: str
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    check_refused(file, said)


def fail_with(code: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("write", errno.ENOSPC, "the disk is full"),
        ("fsync", errno.EIO, "input/output error"),
        ("fchmod", errno.EPERM, "operation not permitted"),
        ("replace", errno.EBUSY, "busy"),
        ("replace", errno.EROFS, "mounted read-only"),
    ],
)
def test_failure_leaves_the_old_file_and_nothing_else(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, said: str
) -> None:
    monkeypatch.setattr(policy_replace.os, call, fail_with(code))
    check_refused(file, said)


def test_disk_that_takes_a_part_is_written_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(policy_replace.os, "write", lambda handle, data: write(handle, data[:1]))
    save(file, b"whole\n")
    assert file.read_bytes() == b"whole\n"


@pytest.fixture
def foreign_folder() -> Iterator[Path]:
    """A folder that the account running the tests may read and not write."""
    folder = Path(tempfile.mkdtemp(prefix="policy_file_"))
    (folder / "homebase.toml").write_bytes(OLD)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


SAVE = """
import os, sys
from pathlib import Path
from server.policy_file.replace import hold_folder, replace_bytes
from server.errors import PolicyUnwritable
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with hold_folder(Path(sys.argv[1])) as locked:
        replace_bytes(Path(sys.argv[1]), b"new", b"old\\n", locked=locked)
except PolicyUnwritable as error:
    print(error.message)
"""


def test_read_only_folder_is_refused(foreign_folder: Path) -> None:
    file = foreign_folder / "homebase.toml"
    file.chmod(0o666)
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(file)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout == f"{file} cannot be saved: permission denied. Nothing was changed.\n"
    assert file.read_bytes() == OLD
    assert names(foreign_folder) == ["homebase.toml"]


def test_change_at_the_last_moment_is_not_written_over(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def change_meanwhile(handle: int) -> None:
        fsync(handle)
        file.write_bytes(b"theirs\n")

    monkeypatch.setattr(policy_replace.os, "fsync", change_meanwhile)
    with pytest.raises(PolicyConflict):
        save(file)
    assert file.read_bytes() == b"theirs\n"
    assert names(file.parent) == ["homebase.toml"]


def test_leftovers_of_killed_saves_are_removed_by_the_next(file: Path) -> None:
    for number in range(3):
        (file.parent / f".homebase.toml.{number:08x}.saving").write_bytes(b"half")
    (file.parent / ".homebase.toml.swp").write_bytes(b"an editor's")
    (file.parent / ".other.toml.00000000.saving").write_bytes(b"another file's")
    save(file)
    assert names(file.parent) == [".homebase.toml.swp", ".other.toml.00000000.saving", "homebase.toml"]


def test_without_a_lock_only_old_leftovers_are_removed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_replace.fcntl, "flock", fail_with(errno.ENOLCK))
    young, old = (file.parent / f".homebase.toml.{number}.saving" for number in (1, 2))
    young.write_bytes(b"half")
    old.write_bytes(b"half")
    os.utime(old, (1, 1))
    save(file)
    assert names(file.parent) == [".homebase.toml.1.saving", "homebase.toml"]


def test_folder_held_by_another_is_waited_for_and_then_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = os.open(file.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        monkeypatch.setattr(policy_replace, "_LOCK_WAIT_S", 0.05)
        check_refused(file, "another program holds its folder")
        monkeypatch.setattr(policy_replace, "_LOCK_WAIT_S", 10.0)
        threading.Timer(0.1, fcntl.flock, (handle, fcntl.LOCK_UN)).start()
        save(file)
        assert file.read_bytes() == NEW
    finally:
        os.close(handle)
