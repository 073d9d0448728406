"""The second tier: what survives a restart, and what happens to files that are not what they should be."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.engine.prefix import disk as disk_module
from server.engine.prefix import store
from server.engine.prefix.files import FileBroken, read_header
from server.events import PrefixCacheSampled
from server.models.folder import EMBEDDED_FOLDER

FIXTURES = Path(__file__).parents[2] / "fixtures" / "flash_next"

Text = Callable[[int, int], tuple[int, ...]]
Make = Callable[..., Any]


def list_files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.safetensors"))


def restart(warm: Any, desk: Make, name: str, **policy: Any) -> Any:
    warm.runner.close(20)
    return desk(name, **{"prefix_cache_disk_gib": 1.0, **policy})


def wait_written(warm: Any) -> None:
    deadline = time.monotonic() + 20
    while warm.cache._disk._pending and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not warm.cache._disk._pending


@pytest.mark.parametrize("name", ["nano", "tiny2", "tiny_mlx_q4", "llama"])
@pytest.mark.parametrize("mtp", ["off", 2])
def test_a_restart_goes_on_from_disk(desk: Make, cold: Make, text: Text, name: str, mtp: Any) -> None:
    if name == "llama" and mtp == 2:
        pytest.skip("no head")
    head, prompt = text(1, 600), (*text(1, 600), *text(2, 80))
    warm = desk(name, mtp=mtp, prefix_cache_disk_gib=1.0)
    reply = warm.run(prompt, boundaries=(0, 600, 675))
    again = restart(warm, desk, name, mtp=mtp)
    for asked, least in (
        ((*head, *text(3, 40)), 512 if name == "llama" else 600),
        (prompt, 512 if name == "llama" else 675),
        ((*prompt, *reply, *text(4, 30)), 680 + len(reply) - 1),
    ):
        assert again.run(asked, 15) == cold(name, asked, 15)
        assert again.looked_up().cached_tokens >= least, again.looked_up()


def test_what_memory_had_to_let_go_of_comes_back(desk: Make, cold: Make, text: Text) -> None:
    whole = desk("tiny")
    whole.run(text(1, 300))
    small = desk("tiny", prefix_cache_gib=1.3 * whole.cache.nbytes / 2**30, prefix_cache_disk_gib=1.0)
    for seed in (1, 2, 3, 1):
        assert small.run(text(seed, 300)) == cold("tiny", text(seed, 300))
        wait_written(small)
    assert small.looked_up().cached_tokens >= 299


def test_a_memory_that_holds_nothing_of_it_runs_cold_and_ends(desk: Make, cold: Make, text: Text) -> None:
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    warm.run(text(1, 300))
    tiny = restart(warm, desk, "tiny", prefix_cache_gib=1e-6)
    assert tiny.run(text(1, 300)) == cold("tiny", text(1, 300))
    assert tiny.looked_up().cached_tokens == 0


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    match how:
        case "empty":
            data.clear()
        case "truncated":
            del data[-1:]
        case "short":
            del data[5:]
        case "longer":
            data += b"\0"
        case "header":
            data[:8] = (2**40).to_bytes(8, "little")
        case "json":
            data[9] ^= 0xFF
        case "values":
            data[-5] ^= 1
        case "notes":
            data = data.replace(b"recent", b"recant", 1)
        case "foreign":
            data = bytearray((EMBEDDED_FOLDER / "model.safetensors").read_bytes()[:200_000])
        case "version":
            data = data.replace(disk_module.FORMAT.encode(), b"homebase-prefix-0")
        case _:
            data = data.replace(b'"identity": "[\\"', b'"identity": "[\\"x', 1)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "how",
    ["empty", "truncated", "short", "longer", "header", "json", "values", "notes", "foreign", "version", "identity"],
)
@pytest.mark.parametrize("when", ["before", "while it runs"])
def test_a_file_that_is_broken_is_dropped_with_a_notice(
    desk: Make, cold: Make, text: Text, cache_home: Path, caplog: pytest.LogCaptureFixture, how: str, when: str
) -> None:
    prompt = text(1, 200)
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    warm.run(prompt)
    warm.runner.close(20)
    files = list_files(cache_home)
    assert files
    again = desk("tiny", prefix_cache_disk_gib=1.0)
    if when == "while it runs":
        again.run(text(9, 40))
    for path in files:
        damage(path, how)
    assert again.run(prompt) == cold("tiny", prompt)
    assert again.looked_up().cached_tokens == 0
    assert caplog.text.count("is dropped") >= 1
    wait_written(again)
    last = restart(again, desk, "tiny")
    assert last.run(prompt) == cold("tiny", prompt)
    assert last.looked_up().cached_tokens == 199  # written anew


def test_a_file_that_fits_no_state_costs_no_stream_its_work(
    desk: Make, cold: Make, text: Text, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = text(1, 200)
    monkeypatch.setattr(store, "build_identity", lambda facts: "one for all")
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    warm.run(prompt)
    root = store.find_root()
    (folder,) = root.iterdir()
    warm.runner.close(20)
    desk("tiny2", prefix_cache_disk_gib=1.0).run((5, 6, 7))
    (other,) = (each for each in root.iterdir() if each != folder)
    shutil.copytree(folder, other, dirs_exist_ok=True)
    wrong = desk("tiny2", prefix_cache_disk_gib=1.0)
    assert wrong.run(prompt) == cold("tiny2", prompt)
    assert "another model" in caplog.text
    assert wrong.run(prompt) == cold("tiny2", prompt)
    assert wrong.looked_up().cached_tokens == 199


def test_a_full_disk_is_a_notice_and_memory_goes_on(
    desk: Make,
    cold: Make,
    text: Text,
    cache_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_module, "write_file", fail)
    warm, prompt = desk("tiny", prefix_cache_disk_gib=1.0), text(1, 200)
    warm.run(prompt)
    wait_written(warm)
    warm.run(text(2, 200))
    assert warm.run(prompt) == cold("tiny", prompt)
    assert warm.looked_up().cached_tokens >= 199
    assert caplog.text.count("the disk is full") == 1
    assert not list_files(cache_home)


def test_a_folder_that_cannot_be_made_is_a_notice_and_memory_goes_on(
    desk: Make, cold: Make, text: Text, cache_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache_home.write_text("not a folder")
    warm, prompt = desk("tiny", prefix_cache_disk_gib=1.0), text(1, 200)
    warm.run(prompt)
    assert warm.run(prompt) == cold("tiny", prompt)
    assert warm.looked_up().cached_tokens >= 199
    assert "its folder cannot be used" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_files_are_for_their_user_alone(desk: Make, text: Text, cache_home: Path) -> None:
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    warm.run(text(1, 200))
    warm.runner.close(20)
    folders = [cache_home, *(each for each in cache_home.iterdir() if each.is_dir())]
    assert len(folders) == 2
    assert [folder.stat().st_mode & 0o077 for folder in folders] == [0, 0]


def test_the_disk_keeps_to_its_budget_oldest_first_other_models_too(desk: Make, text: Text, cache_home: Path) -> None:
    probe = desk("tiny2", prefix_cache_disk_gib=1.0)
    probe.run(text(1, 200))
    probe.runner.close(20)
    budget = 2.5 * sum(path.stat().st_size for path in list_files(cache_home)) / 2**30
    shutil.rmtree(cache_home)
    first = desk("tiny", prefix_cache_disk_gib=1.0)
    first.run(text(1, 60))
    first.runner.close(20)
    old = set(list_files(cache_home))
    assert old
    for path in old:
        os.utime(path, (1, 1))
    other = desk("tiny2", prefix_cache_disk_gib=budget)
    for seed in range(4):
        other.run(text(10 + seed, 200))
        wait_written(other)
        assert sum(path.stat().st_size for path in list_files(cache_home)) <= budget * 2**30
    assert not old & set(list_files(cache_home))
    last = restart(other, desk, "tiny2", prefix_cache_disk_gib=budget)
    last.run(text(13, 200))
    assert last.looked_up().cached_tokens == 199


def total(root: Path) -> int:
    return sum(path.lstat().st_size for path in list_files(root) if path.is_file())


def wait_until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert claim()


@pytest.fixture
def filled(desk: Make, text: Text, cache_home: Path) -> int:
    """Bytes of what six prompts left on disk; the limit was far above it."""
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    for seed in range(6):
        warm.run(text(20 + seed, 200))
    warm.runner.close(20)
    assert len(list_files(cache_home)) >= 6
    return total(cache_home)


@pytest.mark.parametrize("share", [0.5, 0.01])
@pytest.mark.parametrize("name", ["tiny", "tiny2"])
def test_a_limit_below_what_is_there_is_kept_to_from_the_start(
    desk: Make, cache_home: Path, filled: int, share: float, name: str
) -> None:
    """With nothing to write, for this model's files and for others'; also when no file fits the limit."""
    limit = share * filled
    desk(name, prefix_cache_disk_gib=limit / 2**30).rest()
    wait_until(lambda: total(cache_home) <= limit)


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_a_limit_that_is_lowered_while_nothing_runs_is_kept_to(
    desk: Make, cache_home: Path, filled: int, share: float
) -> None:
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    (told,) = [event for event in warm.rest() if isinstance(event, PrefixCacheSampled)]
    assert told.disk_bytes == filled
    warm.set(prefix_cache_disk_gib=share * filled / 2**30)
    warm.rest()
    wait_until(lambda: total(cache_home) <= share * filled)
    wait_until(lambda: warm.cache.disk_bytes == total(cache_home))
    (told,) = [event for event in warm.rest() if isinstance(event, PrefixCacheSampled)]
    assert told.disk_bytes == total(cache_home)


def test_a_limit_of_nothing_leaves_what_is_there(desk: Make, cache_home: Path, filled: int) -> None:
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    warm.rest()
    warm.set(prefix_cache_disk_gib=0.0)
    warm.rest()
    assert warm.cache.disk_bytes == 0
    assert total(cache_home) == filled


def test_what_is_on_disk_is_told_when_it_is_there(desk: Make, text: Text, cache_home: Path) -> None:
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    warm.run(text(1, 200))
    wait_written(warm)
    (told,) = [event for event in warm.rest() if isinstance(event, PrefixCacheSampled)]
    assert told.disk_bytes == total(cache_home) > 0
    assert warm.rest() == ()


def test_two_servers_with_one_folder_keep_to_the_limit_together(
    desk: Make, cold: Make, text: Text, cache_home: Path, filled: int
) -> None:
    shutil.rmtree(cache_home)
    limit = filled // 2
    both = [desk("tiny", prefix_cache_disk_gib=limit / 2**30) for _ in range(2)]
    for seed in range(6):
        prompt = text(30 + seed, 200)
        warm = both[seed % 2]
        assert warm.run(prompt) == cold("tiny", prompt)
        wait_written(warm)
        assert total(cache_home) <= limit
    wait_until(lambda: both[1].cache.disk_bytes <= total(cache_home))  # what the other one deleted is not counted


def put_others(files: list[Path]) -> None:
    """A pipe and a folder by turns, in the place of files."""
    for place, path in enumerate(files):
        path.unlink()
        os.mkfifo(path) if place % 2 else path.mkdir()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("when", ["before", "while it runs"])
def test_what_is_no_file_is_neither_waited_for_nor_touched(
    desk: Make, cold: Make, text: Text, cache_home: Path, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    prompt = text(1, 200)
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    for name in (1, 2):
        warm.run(text(name, 200))
    warm.runner.close(20)
    files = list_files(cache_home)
    assert len(files) >= 2
    again = desk("tiny", prefix_cache_disk_gib=1.0)
    if when == "while it runs":
        again.rest()
    put_others(files)
    for name in (1, 2, 1):
        assert again.run(text(name, 200)) == cold("tiny", text(name, 200))
        wait_written(again)
    assert not [path for path in files if path.is_file()]
    again.run(text(3, 200))
    wait_written(again)
    assert [path for path in list_files(cache_home) if path.is_file()], "writing goes on"
    assert "are no regular files and are left alone" in caplog.text
    if when == "before":
        assert caplog.text.count("left alone") == 1
    assert again.run(prompt) == cold("tiny", prompt)


def test_nothing_half_written_is_left_or_read(cache_home: Path, desk: Make, text: Text) -> None:
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    warm.run(text(1, 100))
    warm.runner.close(20)
    (path, *_) = list_files(cache_home)
    part = path.with_name(".abc-1.part")
    part.write_bytes(b"half")
    desk("tiny", prefix_cache_disk_gib=1.0).run(text(2, 100))
    assert part.exists()  # another server may be at it
    os.utime(part, (1, 1))
    desk("tiny", prefix_cache_disk_gib=1.0).run(text(2, 100))
    assert not part.exists()


def test_headers_say_what_is_in_a_file(cache_home: Path, desk: Make, text: Text, tmp_path: Path) -> None:
    warm = desk("tiny", prefix_cache_disk_gib=1.0)
    warm.run(text(1, 100))
    warm.runner.close(20)
    for path in list_files(cache_home):
        notes = read_header(path).notes
        assert notes["format"] == disk_module.FORMAT
        assert notes["tokens"] == path.stem
        assert "tiny" in notes["identity"]
    (tmp_path / "x").write_bytes(b"\x01\0\0\0\0\0\0\0{")
    with pytest.raises(FileBroken):
        read_header(tmp_path / "x")


def test_an_edit_of_the_weights_leaves_their_state_behind(desk: Make, cold: Make, text: Text, tmp_path: Path) -> None:
    """Same name, same size, a few values in the middle: as after a repair of one tensor."""
    first, copy, edited = (tmp_path / name / "model" for name in ("first", "copy", "edited"))
    for folder in (first, copy, edited):
        shutil.copytree(FIXTURES / "tiny", folder)
    weights = edited / "model.safetensors"
    data = bytearray(weights.read_bytes())
    for place in range(len(data) // 2 + 5000, len(data) // 2 + 9000, 4):
        data[place] ^= 0x40
    weights.write_bytes(data)
    prompt = text(1, 300)
    warm = desk(str(first), prefix_cache_disk_gib=1.0)
    warm.run(prompt)
    again = restart(warm, desk, str(copy))
    assert again.run(prompt) == cold(str(first), prompt)
    assert again.looked_up().cached_tokens == 299
    other = restart(again, desk, str(edited))
    assert other.run(prompt) == cold(str(edited), prompt)
    assert other.looked_up().cached_tokens == 0
