from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from server.models.fingerprint import HEAD_BYTES, SAMPLE_BYTES, SAMPLES, fingerprint_weights
from server.models.folder import EMBEDDED_FOLDER
from server.models.loader import load_model

FIXTURES = Path(__file__).parents[1] / "fixtures" / "flash_next"
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of nano with the times of the original."""
    copy = tmp_path / "nano"
    copy.mkdir()
    for name in ("config.json", WEIGHTS):
        shutil.copy2(EMBEDDED_FOLDER / name, copy / name)
    return copy


def change(file: Path, *places: int, keeps_time: bool = False) -> None:
    """Turn bits in place: the size stays."""
    before = file.stat()
    with file.open("r+b") as stream:
        for place in places:
            stream.seek(place)
            byte = stream.read(1)[0]
            stream.seek(place)
            stream.write(bytes([byte ^ 1]))
    later_ns = 0 if keeps_time else 1
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + later_ns))


def test_a_copy_with_the_same_times_is_the_same(folder: Path) -> None:
    assert fingerprint_weights(folder) == fingerprint_weights(EMBEDDED_FOLDER)


def test_one_value_that_no_sample_meets_makes_other_weights(folder: Path) -> None:
    before, size = fingerprint_weights(folder), (folder / WEIGHTS).stat().st_size
    place = size // SAMPLES + 10 * SAMPLE_BYTES
    assert place > HEAD_BYTES
    change(folder / WEIGHTS, place, keeps_time=True)
    assert fingerprint_weights(folder) == before, "a sample meets this place: choose another"
    change(folder / WEIGHTS, place)
    assert fingerprint_weights(folder) != before


def test_other_values_everywhere_are_seen_whatever_the_times_say(folder: Path) -> None:
    before, size = fingerprint_weights(folder), (folder / WEIGHTS).stat().st_size
    change(folder / WEIGHTS, *range(HEAD_BYTES, size, 1000), keeps_time=True)
    assert fingerprint_weights(folder) != before


def test_a_configuration_that_was_touched_counts(folder: Path) -> None:
    before = fingerprint_weights(folder)
    os.utime(folder / "config.json", (1, 1))
    assert fingerprint_weights(folder) != before


def test_the_drafter_is_part_of_it_be_it_a_folder_or_a_file(folder: Path, tmp_path: Path) -> None:
    drafter = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "tiny_mtp_drafter", drafter)
    seen = {fingerprint_weights(folder), fingerprint_weights(folder, drafter)}
    seen.add(fingerprint_weights(folder, drafter / WEIGHTS))
    change(drafter / WEIGHTS, -1 + (drafter / WEIGHTS).stat().st_size)
    seen |= {fingerprint_weights(folder, drafter), fingerprint_weights(folder, drafter / WEIGHTS)}
    assert len(seen) == 5


@pytest.mark.timeout(20)
def test_a_pipe_among_the_files_is_not_waited_for(folder: Path) -> None:
    before = fingerprint_weights(folder)
    os.mkfifo(folder / "more.safetensors")
    assert fingerprint_weights(folder) == before


def test_a_loaded_model_knows_its_fingerprint_and_so_its_drafter() -> None:
    tiny, drafter = FIXTURES / "tiny", FIXTURES / "tiny_mtp_drafter"
    assert load_model(str(tiny), "auto").facts.fingerprint == fingerprint_weights(tiny)
    drafting = load_model(str(tiny), "auto", drafter=drafter)
    assert drafting.facts.fingerprint == fingerprint_weights(tiny, drafter)
