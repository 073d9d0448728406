"""Models by their names on Hugging Face, against a hub on this machine; nothing here needs a network."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from server.errors import ModelError, ModelNotFetched, ModelNotFound
from server.models import fetch
from server.models.fetch import fetch_model
from server.models.folder import HubId
from server.models.tensor_files import read_header
from server.snapshot import FetchView

REPO = "someone/small-model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 3_000_000


def build_weights(size: int = LARGE) -> bytes:
    header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(256)) * (size // 256) + bytes(size % 256)


class Hub:
    """A hub with one model, which can be slow, cut connections and refuse; counts what it sends."""

    def __init__(self) -> None:
        weights = build_weights()
        self.files: dict[str, bytes] = {
            "config.json": b'{"model_type": "llama"}',
            "tokenizer.json": b"{}",
            "README.md": b"not wanted",
            "model.py": b"not wanted",
            "pytorch_model.bin": b"not wanted" * 1000,
            "model-00001-of-00002.safetensors": weights,
            "model-00002-of-00002.safetensors": weights[:-1] + b"!",
        }
        self.status: int | None = None
        self.gated = False
        self.cut_after: int | None = None
        """Bytes of each weights file, from its beginning, after which connections are cut."""
        self.pause_s = 0.0
        self.sent: dict[str, int] = {}
        self.ranges: list[tuple[str, str]] = []
        self.asked = 0
        self.spoil = False

    def wait_for_bytes(self, count: int) -> None:
        """Wait until so many of some weights file have been sent."""
        while not any(self.sent.get(name, 0) >= count for name in self.files if self.is_large(name)):
            time.sleep(0.02)

    def is_large(self, name: str) -> bool:
        return name.endswith(".safetensors")

    def blob(self, name: str) -> str:
        content = self.files[name]
        if self.is_large(name):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()

    def tree(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for name, content in self.files.items():
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": self.blob(name)}
            if self.is_large(name):
                entry["oid"] = "f" * 40
                entry["lfs"] = {"oid": self.blob(name), "size": len(content), "pointerSize": 100}
            entries.append(entry)
        return entries


def build_handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            hub.asked += 1
            path = self.path.partition("?")[0]
            if hub.status is not None:
                return self.send(hub.status, b"{}", {"X-Error-Code": "GatedRepo"} if hub.gated else {}, body)
            if path.startswith(f"/api/models/{REPO}/tree/"):
                return self.send(200, json.dumps(hub.tree()).encode(), {}, body)
            if path in (f"/api/models/{REPO}", f"/api/models/{REPO}/revision/main"):
                info = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": name} for name in hub.files]}
                return self.send(200, json.dumps(info).encode(), {}, body)
            if path.startswith(f"/api/models/{REPO}/revision/"):
                return self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
            name = path.rpartition(f"/{REPO}/resolve/{COMMIT}/")[2]
            if name in hub.files:
                return self.send_file(name, body)
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

        def send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT, **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def send_file(self, name: str, body: bool) -> None:
            content, start = hub.files[name], 0
            if wanted := self.headers.get("Range"):
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
                hub.ranges.append((name, wanted))
            self.send_response(206 if wanted else 200)
            self.send_header("ETag", f'"{hub.blob(name)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content) - start))
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if body:
                self.send_body(name, content, start)

        def send_body(self, name: str, content: bytes, start: int) -> None:
            if hub.spoil and "00001" in name:
                content = b"\1" + content[1:]
            for place in range(start, len(content), 100_000):
                if hub.cut_after is not None and hub.is_large(name) and place >= hub.cut_after:
                    self.close_connection = True
                    return
                piece = content[place : place + 100_000]
                try:
                    self.wfile.write(piece)
                except ConnectionError:  # the fetching process has ended
                    self.close_connection = True
                    return
                hub.sent[name] = hub.sent.get(name, 0) + len(piece)
                time.sleep(hub.pause_s if hub.is_large(name) else 0)

    return Handler


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that the environment names, with a cache of its own."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), build_handler(hub))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield hub
    server.shutdown()
    server.server_close()


async def get(repo: str = REPO, revision: str | None = None) -> tuple[Path, list[FetchView]]:
    told: list[FetchView] = []
    return await fetch_model(HubId(repo, revision), told.append), told


async def check_refused(kind: type[ModelError], *words: str, repo: str = REPO, revision: str | None = None) -> None:
    """One plain sentence of this kind that says these words."""
    with pytest.raises(ModelError) as caught:
        await get(repo, revision)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 500
    for word in words:
        assert word in message, message


def find_partials(folder: Path) -> dict[str, int]:
    """Bytes of files that are not whole yet, by what they will be named."""
    return {file.name.partition(".")[0]: file.stat().st_size for file in folder.rglob("*.homebase-part")}


async def test_a_model_is_fetched_once_and_its_progress_told(hub: Hub) -> None:
    hub.pause_s = 0.03
    folder, told = await get()
    wanted = {name for name in hub.files if name.endswith((".json", ".safetensors"))}
    assert {file.name for file in folder.iterdir()} == wanted
    assert all((folder / name).read_bytes() == hub.files[name] for name in wanted)
    total = sum(len(hub.files[name]) for name in wanted)
    assert {view.total_bytes for view in told} == {total}
    done = [view.done_bytes for view in told]
    assert done == sorted(done)
    assert done[-1] == total
    assert len(told) > 2
    asked = hub.asked
    assert await get() == (folder, [])
    assert hub.asked == asked, "a network was asked for what is in the cache"


async def test_the_cache_is_enough_without_a_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = await get()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert (await get())[0] == folder
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (await get())[0] == folder


async def test_without_a_network_a_sentence_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    await check_refused(ModelNotFetched, REPO, "http://127.0.0.1:9 cannot be reached")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    await check_refused(ModelNotFetched, REPO, "HF_HUB_OFFLINE")


async def test_what_a_stopped_fetch_has_got_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    hub.pause_s = 0.1
    fetching = asyncio.create_task(get())
    await asyncio.to_thread(hub.wait_for_bytes, LARGE // 2)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    kept = find_partials(tmp_path)
    assert len(kept) == 2
    assert LARGE // 4 < max(kept.values()) < LARGE
    hub.pause_s = 0.0
    folder, told = await get()
    for name in hub.files:
        if hub.is_large(name):
            assert (folder / name).read_bytes() == hub.files[name]
    assert told[0].done_bytes >= sum(kept.values())
    resumed = {name: int(wanted.removeprefix("bytes=").rstrip("-")) for name, wanted in hub.ranges}
    assert resumed == {name: kept[hub.blob(name)] for name in hub.files if kept.get(hub.blob(name))}
    assert not find_partials(tmp_path)


async def test_a_connection_that_is_cut_goes_on_where_it_was(hub: Hub) -> None:
    hub.cut_after = LARGE // 2
    fetching = asyncio.create_task(get())
    await asyncio.to_thread(hub.wait_for_bytes, LARGE // 2)
    hub.cut_after = None
    folder, _ = await fetching
    assert hub.ranges
    assert all((folder / name).read_bytes() == hub.files[name] for name in hub.files if hub.is_large(name))


async def test_content_that_was_damaged_on_the_way_is_noticed(hub: Hub) -> None:
    hub.spoil = True
    await check_refused(ModelNotFetched, "damaged on the way", ".safetensors")
    hub.spoil = False
    assert (await get())[0].is_dir()


async def test_what_the_hub_refuses_is_told(hub: Hub) -> None:
    await check_refused(ModelNotFound, "'someone/no-model'", "no folder", repo="someone/no-model")
    await check_refused(ModelNotFound, REPO, "'v9'", revision="v9")
    hub.status = 503
    await check_refused(ModelNotFetched, "503", REPO)
    hub.status, hub.gated = 403, True
    await check_refused(ModelNotFetched, "gated", f"/{REPO}", "hf auth login")


async def test_a_model_without_a_config_is_none(hub: Hub) -> None:
    del hub.files["config.json"]
    await check_refused(ModelNotFound, REPO, "config.json")


async def test_an_incomplete_cache_is_completed(hub: Hub) -> None:
    folder, _ = await get()
    lost = folder / "model-00002-of-00002.safetensors"
    lost.resolve().unlink()
    lost.unlink()
    again, told = await get()
    assert again == folder
    assert lost.read_bytes() == hub.files[lost.name]
    assert told[0].done_bytes >= LARGE
    assert set(read_header(lost)) == {"x"}


async def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 10**18

    hub.files["model-00003.safetensors"] = Huge(b"")
    await check_refused(ModelNotFetched, "GB more", "are free", "HF_HOME")
    assert not hub.sent


async def test_a_process_that_says_nothing_is_an_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.sys, "executable", "/bin/echo")
    await check_refused(ModelNotFetched, REPO, "ended without a word")


def test_a_fetch_ends_with_its_parent(hub: Hub) -> None:
    hub.pause_s = 5.0
    command = [sys.executable, "-m", "server.models.fetch_child", REPO]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["total"] > LARGE
    child.stdin.close()
    assert child.wait(10) == 1
    child.stdout.close()
