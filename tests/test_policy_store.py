"""The store alone with its file: load, draft, edit, undo."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.errors import PolicyConflict, PolicyInvalid, PolicyUnwritable
from server.events import AnyNotice, PolicyChanged
from server.policy import LimitValue, Policy, apply_changes, list_limits, read_limit
from server.policy_file import replace as policy_replace
from server.policy_file.document import compute_etag
from server.policy_file.template import build_template
from server.policy_store import PolicyState, PolicyStore

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


# Loading


def test_load_tells_values_origins_and_warnings(file: Path, build: Build) -> None:
    state = build(file).state
    assert state.policy.policy.max_in_flight == 2
    assert state.path == str(file)
    assert (state.exists, state.problem, state.can_undo) == (True, None, False)
    assert state.etag == compute_etag(TEXT.encode())
    assert state.origins["policy.max_in_flight"] == "homebase.toml:10"
    assert state.origins["server.port"] == "homebase.toml:3"
    assert state.origins["console.theme"] == "default"
    assert set(state.origins) == {limit.key for limit in list_limits()}
    assert state.warnings == ("homebase.toml:6: [notes] is no table of ours; it is left alone.",)


def test_missing_file_means_defaults_and_is_no_problem(tmp_path: Path, build: Build) -> None:
    state = build(tmp_path / "homebase.toml").state
    assert state.policy == Policy()
    assert (state.exists, state.etag, state.problem) == (False, "", None)
    assert not list(tmp_path.iterdir())


def test_relative_path_outlives_a_change_of_folder(file: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    store = build(Path("homebase.toml"))
    monkeypatch.chdir("/")
    store.edit({"policy.max_in_flight": 1}, store.state.etag)
    assert "max_in_flight = 1 " in file.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[policy]\nmax_in_flight = 99\n",
            "homebase.toml:2: policy.max_in_flight: 99 is not allowed; allowed: 1 to 64.",
        ),
        ("[policy]\nmax_in_flight =\n", "homebase.toml:2: "),
        ("[policy]\nmax_in_flight = 1\nmax_in_flight = 1\n", "homebase.toml:3: "),
        ("[polcy]\n", "homebase.toml:1: Unknown key polcy; did you mean policy?"),
    ],
)
def test_start_with_a_broken_file_is_one_plain_error(file: Path, build: Build, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(PolicyInvalid) as caught:
        build(file)
    assert caught.value.message.startswith(said)
    assert file.read_text() == text


def test_flags_go_before_the_file_and_are_never_written(file: Path, build: Build, notices: Notices) -> None:
    store = build(file, {"server.port": (9000, "--port")})
    assert store.state.policy.server.port == 9000
    assert store.state.origins["server.port"] == "--port"
    store.edit({"policy.max_in_flight": 1}, store.state.etag)
    assert file.read_text() == TEXT.replace("max_in_flight = 2", "max_in_flight = 1")
    notices.clear()
    draft = store.draft({"server.port": 8000})
    assert "+port = 8000" in draft.diff
    assert draft.notes == ("--port 9000 goes before server.port in the file for this run.",)
    state = store.edit({"server.port": 8000}, draft.etag)
    assert "port = 8000   # clients know it" in file.read_text()
    assert (state.policy.server.port, state.origins["server.port"]) == (9000, "--port")
    assert notices == []
    assert build(file).state.policy.server.port == 8000


def test_bad_flag_is_refused_by_its_own_name(file: Path, build: Build) -> None:
    with pytest.raises(PolicyInvalid, match=r"^--port: 99999 is not allowed; allowed: 1 to 65,535\.$"):
        build(file, {"server.port": (99999, "--port")})


# Editing


def test_edit_writes_one_value_swaps_and_announces(file: Path, build: Build, notices: Notices) -> None:
    store = build(file)
    before = store.state
    state = store.edit({"policy.max_in_flight": 1}, before.etag)
    assert file.read_text() == TEXT.replace("max_in_flight = 2", "max_in_flight = 1")
    assert state is store.state
    assert before.policy.policy.max_in_flight == 2
    assert state.policy.policy.max_in_flight == 1
    assert state.etag == compute_etag(file.read_bytes())
    assert state.can_undo
    assert notices == [changed(("policy.max_in_flight", "2", "1"))]


def test_put_says_what_the_file_held_and_who_changed_it(file: Path, build: Build, notices: Notices) -> None:
    store = build(file, {"policy.max_in_flight": (5, "--max-in-flight")})
    save = store.put({"policy.max_in_flight": 3}, store.state.etag, "alice")
    assert [read_limit(each, "policy.max_in_flight") for each in (save.before, save.after, save.state.policy)] == [
        2,
        3,
        5,
    ]
    assert save.notes == ("--max-in-flight 5 goes before policy.max_in_flight in the file for this run.",)
    assert notices == []
    store.put({"server.keep_alive_s": 9.0}, None, "alice")
    (notice,) = notices
    assert isinstance(notice, PolicyChanged)
    assert (notice.origin, notice.by) == ("api", "alice")
    again = store.put({"server.keep_alive_s": 9.0}, None, "bob")
    assert again.before == again.after
    assert len(notices) == 1


def test_put_with_an_etag_is_for_that_file_alone_and_edit_for_its_keys(file: Path, build: Build) -> None:
    store = build(file)
    etag = store.state.etag
    set_in_file(file, "max_context_tokens = 32_768", "max_context_tokens = 16_384")
    before = file.read_bytes()
    with pytest.raises(PolicyConflict) as caught:
        store.put({"policy.max_in_flight": 3}, etag, "alice")
    assert caught.value.keys == ("policy.max_context_tokens",)
    assert "policy.max_context_tokens was 32768 there and is 16384" in str(caught.value)
    with pytest.raises(PolicyConflict, match="not known any more"):
        store.put({"policy.max_in_flight": 3}, "0" * 64, "alice")
    assert file.read_bytes() == before
    store.edit({"policy.max_in_flight": 3}, etag)
    # The etag of the file as it is on the disk is right, whether or not the store has seen it.
    set_in_file(file, "max_in_flight = 3", "max_in_flight = 4")
    save = store.put({"policy.max_in_flight": 1}, compute_etag(file.read_bytes()), "alice")
    assert save.before.policy.max_in_flight == 4
    assert store.undo().policy.policy.max_in_flight == 4


def test_saved_value_is_in_the_file_before_edit_returns_and_after_a_restart(file: Path, build: Build) -> None:
    store = build(file)
    store.edit({"policy.max_in_flight": 5, "console.theme": "homebase-light"}, store.state.etag)
    again = build(file).state
    assert again.policy == store.state.policy
    assert (again.policy.policy.max_in_flight, again.policy.console.theme) == (5, "homebase-light")


def test_same_value_again_leaves_bytes_time_and_history_alone(file: Path, build: Build, notices: Notices) -> None:
    store = build(file)
    os.utime(file, (1, 1))
    inode = file.stat().st_ino
    for changes in ({}, {"policy.max_in_flight": 2}, {"policy.max_context_tokens": 32768, "console.ascii": False}):
        assert store.draft(changes).diff == ""
        state = store.edit(changes, store.state.etag)
        assert not state.can_undo
    assert (file.stat().st_mtime, file.stat().st_ino) == (1, inode)
    assert notices == []


def test_draft_shows_the_diff_and_touches_nothing(file: Path, build: Build) -> None:
    store = build(file)
    draft = store.draft({"policy.max_in_flight": 1})
    assert "-max_in_flight = 2   # parent + 1\n+max_in_flight = 1   # parent + 1" in draft.diff
    assert (draft.problem, draft.etag, draft.notes) == (None, store.state.etag, ())
    assert file.read_text() == TEXT


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policy.max_in_flight": 0}, "policy.max_in_flight: 0 is not allowed; allowed: 1 to 64."),
        ({"policy.max_in_flight": True}, "true is not a whole number"),
        ({"policy.max_in_flight": "4"}, '"4" is not a whole number'),
        ({"policy.max_in_flight": 2.0}, "2.0 is not a whole number"),
        ({"policy.max_inflight": 2}, "did you mean policy.max_in_flight?"),
        ({"console.ascii": True, "engine.stall_s": float("nan")}, "engine.stall_s: nan is not allowed"),
    ],
)
def test_invalid_change_is_refused_and_nothing_moves(
    file: Path, build: Build, notices: Notices, changes: dict[str, LimitValue], said: str
) -> None:
    store = build(file)
    before = store.state
    draft = store.draft(changes)
    assert draft.diff == ""
    assert draft.problem is not None
    assert said in draft.problem
    with pytest.raises(PolicyInvalid) as caught:
        store.edit(changes, before.etag)
    assert said in caught.value.message
    assert (store.state, file.read_text(), notices) == (before, TEXT, [])


def test_first_save_creates_the_file_from_the_template(tmp_path: Path, build: Build) -> None:
    file = tmp_path / "config" / "homebase.toml"
    store = build(file)
    draft = store.draft({"policy.max_in_flight": 1})
    assert [line for line in draft.diff.split("\n") if line[0] in "+-"] == ["-max_in_flight = 2", "+max_in_flight = 1"]
    state = store.edit({"policy.max_in_flight": 1}, store.state.etag)
    assert file.read_text() == build_template().replace("max_in_flight = 2", "max_in_flight = 1")
    assert (state.exists, state.problem, state.policy.policy.max_in_flight) == (True, None, 1)
    gone = store.undo()
    assert not file.exists()
    assert (gone.exists, gone.problem, gone.policy) == (False, None, Policy())


def test_default_saved_without_a_file_makes_none(tmp_path: Path, build: Build) -> None:
    store = build(tmp_path / "x" / "homebase.toml")
    store.edit({"policy.max_in_flight": 2}, "")
    assert not list(tmp_path.iterdir())


def test_values_of_a_lived_in_template_are_not_taken_over(tmp_path: Path) -> None:
    template = (
        build_template().replace("max_in_flight = 2", "max_in_flight = 9").replace('api_key = ""', 'api_key = "k"')
    )
    store = PolicyStore(tmp_path / "homebase.toml", template.encode())
    store.load()
    state = store.edit({"console.ascii": True}, "")
    assert (state.policy.policy.max_in_flight, state.policy.server.api_key) == (2, "")


def test_broken_template_still_lets_a_first_save_through(tmp_path: Path) -> None:
    store = PolicyStore(tmp_path / "homebase.toml", b"[[[")
    store.load()
    store.edit({"policy.max_in_flight": 1}, "")
    assert (tmp_path / "homebase.toml").read_text() == "[policy]\nmax_in_flight = 1\n"


def test_unwritable_file_leaves_policy_and_file(file: Path, build: Build, notices: Notices) -> None:
    store = build(file)
    before = store.state
    file.chmod(0o444)
    assert "read-only" in (store.draft({"policy.max_in_flight": 1}).problem or "")
    assert store.draft({"policy.max_in_flight": 2}).problem is None
    with pytest.raises(PolicyUnwritable):
        store.edit({"policy.max_in_flight": 1}, before.etag)
    assert (store.state, file.read_text(), notices) == (before, TEXT, [])


def test_full_disk_leaves_policy_and_file(
    file: Path, build: Build, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build(file)
    before = store.state

    def fill(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy_replace.os, "write", fill)
    with pytest.raises(PolicyUnwritable, match="the disk is full"):
        store.edit({"policy.max_in_flight": 1}, before.etag)
    assert (store.state, file.read_text(), notices) == (before, TEXT, [])
    assert os.listdir(file.parent) == ["homebase.toml"]


def test_secrets_are_dots_in_notices_view_and_messages(file: Path, build: Build, notices: Notices) -> None:
    store = build(file)
    etag = store.state.etag
    draft = store.draft({"server.api_key": "new-secret"})
    set_in_file(file, "very-secret", "their-secret")
    with pytest.raises(PolicyConflict) as caught:
        store.edit({"server.api_key": "new-secret"}, etag)
    store.edit({"server.api_key": "new-secret"}, store.state.etag)
    shown = f"{notices} {store.view()} {caught.value.message} {draft.diff}"
    assert "-secret" not in shown
    assert "••••••" in shown
    assert store.state.policy.server.api_key == "new-secret"


def test_view_is_what_snapshots_show(file: Path, build: Build) -> None:
    store = build(file)
    view = store.view()
    assert (view.path, view.exists, view.etag, view.problem) == (str(file), True, store.state.etag, None)
    assert view.values["policy.max_in_flight"] == 2
    assert view.values["server.api_key"] == "••••••"
    assert set(view.values) == {limit.key for limit in list_limits()}
    assert msgspec.json.decode(msgspec.json.encode(view))["values"]["policy.max_context_tokens"] == 32768


# Undoing


def test_undo_walks_back_byte_for_byte(file: Path, build: Build, notices: Notices) -> None:
    store = build(file)
    texts = [file.read_text()]
    for value in (3, 4, 5):
        store.edit({"policy.max_in_flight": value}, store.state.etag)
        texts.append(file.read_text())
    notices.clear()
    for text in reversed(texts[:-1]):
        assert store.state.can_undo
        store.undo()
        assert file.read_text() == text
    assert notices[0] == changed(("policy.max_in_flight", "5", "4"), origin="undo")
    assert not store.state.can_undo
    assert store.state.policy.policy.max_in_flight == 2
    with pytest.raises(PolicyConflict, match="no save"):
        store.undo()


def test_undo_refuses_once_the_file_changed(file: Path, build: Build) -> None:
    store = build(file)
    store.edit({"policy.max_in_flight": 1}, store.state.etag)
    set_in_file(file, "x = 1", "x = 2")
    text = file.read_text()
    with pytest.raises(PolicyConflict, match="changed since"):
        store.undo()
    assert file.read_text() == text
    assert not store.state.can_undo
    set_in_file(file, "x = 2", "x = 1")
    assert store.reload().can_undo
    store.undo()
    assert file.read_text() == TEXT


def test_undo_refuses_to_write_over_a_broken_file(file: Path, build: Build) -> None:
    store = build(file)
    store.edit({"policy.max_in_flight": 1}, store.state.etag)
    file.write_text("[broken")
    with pytest.raises(PolicyConflict):
        store.undo()
    assert file.read_text() == "[broken"


# Properties

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "server.port": st.integers(1, 65535),
    "server.allowed_origins": st.lists(st.sampled_from(["http://a", "http://b"]), max_size=3).map(tuple),
    "policy.max_in_flight": st.integers(1, 64),
    "policy.refusal_status": st.sampled_from(["auto", 429, 503]),
    "policy.subagents.max_depth": st.integers(0, 16),
    "console.ascii": st.booleans(),
    "model.path": st.sampled_from(["nano", "/a b", 'it\'s "x"']),
}
CHANGES = st.lists(st.sampled_from(sorted(VALUES)), max_size=3, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: VALUES[key] for key in keys})
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CHANGES, max_size=5), st.sampled_from([TEXT, TEXT.replace("\n", "\r\n"), "", build_template()]))
def test_any_sequence_of_edits_is_in_file_and_force_and_undone(
    tmp_path: Path, edits: list[dict[str, LimitValue]], text: str
) -> None:
    file = tmp_path / "homebase.toml"
    file.write_bytes(text.encode())
    store = PolicyStore(file, b"")
    states: list[PolicyState] = [store.load()]
    tables = tomllib.loads(text)
    for changes in edits:
        needed = {key: value for key, value in changes.items() if read_limit(store.state.policy, key) != value}
        tables = apply_changes(tables, needed)
        states.append(store.edit(changes, store.state.etag))
        assert tomllib.loads(file.read_bytes().decode()) == tables
        assert all(read_limit(store.state.policy, key) == value for key, value in changes.items())
    while store.state.can_undo:
        store.undo()
    assert file.read_bytes() == text.encode()
    assert store.state.policy == states[0].policy


def test_a_key_that_the_environment_lacks_keeps_the_file_out_with_its_line(
    file: Path, build: Callable[..., PolicyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build(file)
    file.write_text(TEXT + '[server.keys]\nalice = "HOMEBASE_TEST_KEY"\n')
    state = store.reload()
    assert state.problem is not None
    assert state.problem.startswith("homebase.toml:12: server.keys: the environment variable HOMEBASE_TEST_KEY is not")
    assert state.policy.server.keys == {}
    with pytest.raises(PolicyInvalid, match=r"homebase\.toml:12"):
        PolicyStore(file, b"").load()
    monkeypatch.setenv("HOMEBASE_TEST_KEY", "k")
    assert store.reload().problem is None
    assert store.state.policy.server.keys == {"alice": "HOMEBASE_TEST_KEY"}
    assert store.state.origins["server.keys"] == "homebase.toml:12"
    assert store.view().values["server.keys"] == ("alice = HOMEBASE_TEST_KEY",)


def test_an_edit_that_names_a_variable_that_is_not_there_is_not_saved(
    file: Path, build: Callable[..., PolicyStore]
) -> None:
    store = build(file)
    changes = {"server.api_keys_env": "HOMEBASE_TEST_GONE"}
    assert "HOMEBASE_TEST_GONE is not set" in (store.draft(changes).problem or "")
    with pytest.raises(PolicyInvalid, match="HOMEBASE_TEST_GONE is not set"):
        store.edit(changes, store.state.etag)
    assert file.read_text() == TEXT


def test_the_table_of_keys_is_kept_and_not_edited(
    file: Path, build: Callable[..., PolicyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEBASE_TEST_KEY", "k")
    text = TEXT + '[server.keys]\nalice = "HOMEBASE_TEST_KEY"  # hers\n'
    file.write_text(text)
    store = build(file)
    with pytest.raises(PolicyUnwritable, match=r"server\.keys is a table of your own names; edit it in homebase\.toml"):
        store.edit({"server.keys": ("alice = OTHER",)}, store.state.etag)
    store.edit({"server.allow_unauthenticated": True}, store.state.etag)
    assert '[server.keys]\nalice = "HOMEBASE_TEST_KEY"  # hers\n' in file.read_text()
    assert store.state.policy.server.allow_unauthenticated


@pytest.mark.parametrize("changes", [{"server.host": "0.0.0.0", "server.api_key": ""}, {"server.api_key": ""}])
def test_no_edit_opens_the_server_to_everyone_by_the_way(
    file: Path, build: Callable[..., PolicyStore], changes: dict[str, LimitValue]
) -> None:
    file.write_text(TEXT.replace("[server]", '[server]\nhost = "0.0.0.0"'))
    store = build(file)
    assert "homebase.toml:3: server.host 0.0.0.0 answers other machines too" in (store.draft(changes).problem or "")
    with pytest.raises(PolicyInvalid, match="no key is set"):
        store.edit(changes, store.state.etag)
    opened = store.edit({**changes, "server.allow_unauthenticated": True}, store.state.etag)
    assert opened.warnings


def test_flags_count_for_who_is_answered(tmp_path: Path, file: Path, build: Callable[..., PolicyStore]) -> None:
    wide = {"server.host": ("0.0.0.0", "--host")}
    with pytest.raises(PolicyInvalid, match=r"^--host: server\.host 0\.0\.0\.0 answers other machines"):
        build(tmp_path / "none.toml", wide)
    assert build(file, wide).state.policy.server.api_key
    file.write_text('[server]\nhost = "0.0.0.0"\n')
    with pytest.raises(PolicyInvalid, match=r"^homebase\.toml:2: server\.host"):
        build(file)
    assert not build(file, {"server.host": ("127.0.0.1", "--host")}).state.warnings
