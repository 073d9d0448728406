"""Saves under stress: readers meanwhile, and a process killed in the middle of them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

from server.policy_file.replace import hold_folder, replace_bytes
from server.policy_file.template import build_template
from server.policy_store import PolicyStore

KILLED_WHILE_SAVING = """
import json, os, random, signal, sys, time
from pathlib import Path
from server.policy_file.document import read_document
from server.policy_file.replace import hold_folder, replace_bytes
from server.policy_store import PolicyStore

path, chance = Path(sys.argv[1]), random.Random(7)
most_left = 0
for _ in range(50):
    ready, begun = os.pipe()
    child = os.fork()
    if child == 0:
        store = PolicyStore(path, b"")
        store.load()
        value = store.state.policy.policy.max_in_flight
        os.write(begun, b"x")
        while True:
            value = value % 64 + 1
            store.edit({"policy.max_in_flight": value}, store.state.etag)
    os.read(ready, 1)
    time.sleep(chance.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready), os.close(begun)
    read_document(path.read_bytes(), path.name)
    most_left = max(most_left, len(os.listdir(path.parent)) - 1)
print(json.dumps({"most_left": most_left}))
"""


def test_killed_fifty_times_the_file_is_old_or_new_and_nothing_piles_up(tmp_path: Path) -> None:
    file = tmp_path / "homebase.toml"
    file.write_text(build_template())
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_SAVING, str(file)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["most_left"] <= 1
    value = tomllib.loads(file.read_text())["policy"]["max_in_flight"]
    assert file.read_text() == build_template().replace("max_in_flight = 2", f"max_in_flight = {value}")
    store = PolicyStore(file, b"")
    store.load()
    store.edit({"policy.max_in_flight": value % 64 + 1}, store.state.etag)
    assert os.listdir(tmp_path) == ["homebase.toml"]


def test_reader_never_sees_an_empty_or_broken_file(tmp_path: Path) -> None:
    file = tmp_path / "homebase.toml"
    rest = "# as long as the file of a server\n" * 200
    versions = [f"[policy]\nmax_in_flight = {n}\n{rest}end = true\n".encode() for n in range(1, 302)]
    file.write_bytes(versions[0])
    done = threading.Event()
    seen: list[int] = []
    faults: list[Exception] = []

    def read() -> None:
        while not done.is_set():
            try:
                policy = tomllib.loads(file.read_text())["policy"]
                assert policy["end"]
                seen.append(policy["max_in_flight"])
            except Exception as error:  # whatever it is, it is what a reader must never meet
                faults.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for before, after in itertools.pairwise(versions):
        with hold_folder(file) as locked:
            replace_bytes(file, after, before, locked=locked)
    done.set()
    reader.join()
    assert faults == []
    assert seen == sorted(seen)
    assert len(set(seen)) > 30
