"""The store and everyone else who touches the file: other keys, the same key, broken text, no file at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.errors import PolicyConflict, PolicyInvalid
from server.events import AnyNotice, PolicyChanged, PolicyProblem
from server.policy import LimitValue, list_limits, read_limit
from server.policy_file import replace as policy_replace
from server.policy_file.template import build_template
from server.policy_store import PolicyStore

TEXT = """\
# ada's machine
[server]
port = 11234   # clients know it
api_key = "very-secret"

[notes]
x = 1

[policy]
max_in_flight = 2   # parent + 1
max_context_tokens = 32_768
"""

Notices = list[AnyNotice]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "homebase.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def notices() -> Notices:
    return []


@pytest.fixture
def build(notices: Notices) -> Callable[..., PolicyStore]:
    """Builds a loaded store whose notices are collected and whose clock stands still."""

    def build(path: Path, overrides: Mapping[str, tuple[LimitValue, str]] | None = None) -> PolicyStore:
        store = PolicyStore(path, build_template().encode(), overrides or {}, notices.append, lambda: 7.0)
        store.load()
        return store

    return build


Build = Callable[..., PolicyStore]


def changed(*changes: tuple[str, str, str], origin: Any = "console") -> PolicyChanged:
    return PolicyChanged(time_s=7.0, origin=origin, changes=changes)


def set_in_file(path: Path, old: str, new: str) -> None:
    """What an editor does: write beside, rename over."""
    text = path.read_text()
    assert old in text
    beside = path.with_name("editor.tmp")
    beside.write_text(text.replace(old, new))
    os.replace(beside, path)


# Others change the file


def test_edit_of_another_key_outside_survives_ours(file: Path, build: Build, notices: Notices) -> None:
    store = build(file)
    etag = store.state.etag
    set_in_file(file, "port = 11234", "port = 12000")
    state = store.edit({"policy.max_in_flight": 1}, etag)
    assert file.read_text() == TEXT.replace("11234", "12000").replace("flight = 2", "flight = 1")
    assert (state.policy.server.port, state.policy.policy.max_in_flight) == (12000, 1)
    assert notices == [
        changed(("server.port", "11234", "12000"), origin="file"),
        changed(("policy.max_in_flight", "2", "1")),
    ]


def test_same_key_changed_outside_is_a_conflict_with_both_values(file: Path, build: Build) -> None:
    store = build(file)
    etag = store.state.etag
    set_in_file(file, "max_in_flight = 2", "max_in_flight = 7")
    text = file.read_text()
    with pytest.raises(PolicyConflict) as caught:
        store.edit({"policy.max_in_flight": 1, "console.ascii": True}, etag)
    assert caught.value.keys == ("policy.max_in_flight",)
    assert "policy.max_in_flight is 7 there and 1 here" in caught.value.message
    assert file.read_text() == text
    assert store.state.policy.policy.max_in_flight == 7
    assert store.edit({"policy.max_in_flight": 1}, store.state.etag).policy.policy.max_in_flight == 1


def test_same_key_changed_outside_to_the_same_value_is_no_conflict(file: Path, build: Build) -> None:
    store = build(file)
    etag = store.state.etag
    set_in_file(file, "max_in_flight = 2", "max_in_flight = 1")
    text = file.read_text()
    assert store.edit({"policy.max_in_flight": 1}, etag).policy.policy.max_in_flight == 1
    assert file.read_text() == text


def test_unknown_version_counts_as_changed_in_every_key(file: Path, build: Build) -> None:
    store = build(file)
    with pytest.raises(PolicyConflict) as caught:
        store.edit({"policy.max_in_flight": 1}, "0" * 64)
    assert caught.value.keys == ("policy.max_in_flight",)
    store.edit({"policy.max_in_flight": 2}, "0" * 64)
    assert file.read_text() == TEXT


def test_change_between_reading_and_replacing_is_merged(
    file: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build(file)
    fsync = os.fsync
    once = iter([True])

    def change_meanwhile(handle: int) -> None:
        fsync(handle)
        if next(once, False):
            set_in_file(file, "port = 11234", "port = 12000")

    monkeypatch.setattr(policy_replace.os, "fsync", change_meanwhile)
    store.edit({"policy.max_in_flight": 1}, store.state.etag)
    assert file.read_text() == TEXT.replace("11234", "12000").replace("flight = 2", "flight = 1")


def test_two_consoles_share_one_file(file: Path, build: Build) -> None:
    one, other = build(file), build(file)
    etag = other.state.etag
    one.edit({"policy.max_in_flight": 5}, one.state.etag)
    other.edit({"server.port": 12000}, etag)
    assert one.reload().policy == other.state.policy
    with pytest.raises(PolicyConflict):
        other.edit({"policy.max_in_flight": 6}, etag)
    with pytest.raises(PolicyConflict):
        one.undo()


def test_two_consoles_saving_at_once_lose_nothing(file: Path, build: Build) -> None:
    keys = ("policy.max_in_flight", "policy.subagents.max_depth", "server.port")
    stores = [build(file) for _ in keys]
    start = threading.Barrier(len(keys))

    def save(store: PolicyStore, key: str) -> None:
        start.wait()
        for value in range(2, 12):
            store.edit({key: value}, store.state.etag)

    threads = [threading.Thread(target=save, args=pair) for pair in zip(stores, keys, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    final = build(file).state.policy
    assert [read_limit(final, key) for key in keys] == [11, 11, 11]
    assert os.listdir(file.parent) == ["homebase.toml"]


def test_edits_from_many_threads_are_all_kept(file: Path, build: Build) -> None:
    store = build(file)
    keys = [limit.key for limit in list_limits() if limit.key.startswith("policy.subagents.max")]
    threads = [
        threading.Thread(target=lambda key=key: [store.edit({key: n}, store.state.etag) for n in range(8)])
        for key in keys
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [read_limit(store.state.policy, key) for key in keys] == [7] * len(keys)


# Broken, gone and back


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[policy]\nmax_in_flight = \n", 2),
        ("[policy]\nmax_in_flight = '2'\n", 2),
        ("[policy]\n\nmax_in_flight = 99\n", 3),
        ("[policy]\nmax_in_flight = 1\nmax_in_flight = 1\n", 3),
        ("# a\r# b\n[policy]\n", 1),
    ],
)
def test_broken_file_keeps_the_last_good_policy_and_is_never_written(
    file: Path, build: Build, notices: Notices, text: str, line: int
) -> None:
    store = build(file)
    before = store.state
    file.write_bytes(text.encode())
    state = store.reload()
    assert state.policy == before.policy
    assert state.problem is not None
    assert state.problem.startswith(f"homebase.toml:{line}: ")
    assert store.view().problem == state.problem
    for etag in (before.etag, state.etag):
        with pytest.raises(PolicyInvalid) as caught:
            store.edit({"policy.max_in_flight": 1}, etag)
        assert f"homebase.toml:{line}: " in caught.value.message
        assert caught.value.line == line
    assert store.draft({"policy.max_in_flight": 1}).problem == state.problem
    assert file.read_bytes() == text.encode()
    assert notices == [PolicyProblem(time_s=7.0, message=state.problem)]
    file.write_text(TEXT.replace("flight = 2", "flight = 3"))
    well = store.reload()
    assert (well.problem, well.policy.policy.max_in_flight) == (None, 3)
    assert notices[1:] == [
        PolicyProblem(time_s=7.0, message=""),
        changed(("policy.max_in_flight", "2", "3"), origin="file"),
    ]


def test_broken_file_is_found_by_the_edit_itself(file: Path, build: Build) -> None:
    store = build(file)
    file.write_text("[broken")
    with pytest.raises(PolicyInvalid, match=r"homebase\.toml:1: "):
        store.edit({"policy.max_in_flight": 1}, store.state.etag)
    assert store.state.problem is not None


def test_another_fault_is_told_anew_and_the_same_one_is_not(file: Path, build: Build, notices: Notices) -> None:
    store = build(file)
    for text in ("[a] b", "[a] b # still", "\n[a] b"):
        file.write_text(text)
        store.reload()
        store.reload()
    told = [notice.message for notice in notices if isinstance(notice, PolicyProblem)]
    assert [message.partition(" ")[0] for message in told] == ["homebase.toml:1:", "homebase.toml:2:"]


def test_gone_file_keeps_the_policy_and_a_save_brings_it_back(file: Path, build: Build, notices: Notices) -> None:
    store = build(file)
    before = store.state
    file.unlink()
    state = store.reload()
    assert state.policy == before.policy
    assert (state.exists, state.etag) == (False, "")
    assert "homebase.toml is gone" in (state.problem or "")
    store.edit({"policy.max_in_flight": 1}, before.etag)
    assert file.read_text() == TEXT.replace("flight = 2", "flight = 1")
    assert store.state.problem is None
    assert [type(notice) for notice in notices] == [PolicyProblem, PolicyProblem, PolicyChanged]
    assert "is gone" in (store.undo().problem or "")
    assert not file.exists()
    file.write_text(TEXT)
    assert store.reload() == msgspec.structs.replace(before, can_undo=False)


def test_folder_or_pipe_in_its_place_is_a_problem_not_a_hang(file: Path, build: Build) -> None:
    store = build(file)
    file.unlink()
    file.mkdir()
    assert "not a file" in (store.reload().problem or "")
    file.rmdir()
    os.mkfifo(file)
    assert "not a file" in (store.reload().problem or "")
    file.unlink()
    file.write_text(TEXT)
    assert store.reload().problem is None
