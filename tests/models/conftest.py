"""Checkpoints and references that the model tests share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from server.models.cache import Segment, ServedModel
from server.models.flash_next.checkpoint import LoadedFlashNext, load_flash_next
from server.models.folder import read_config
from server.models.loader import load_model

FIXTURES = Path(__file__).parents[1] / "fixtures" / "flash_next"

Floats = npt.NDArray[np.float32]
References = Mapping[str, npt.NDArray[Any]]


@cache
def _load_backbone(name: str) -> LoadedFlashNext:
    return load_flash_next(FIXTURES / name, read_config(FIXTURES / name), mx.float32)


@cache
def _load_served(name: str) -> ServedModel:
    return load_model("nano" if name == "nano" else str(FIXTURES / name), "auto")


@cache
def _load_references(name: str) -> References:
    with np.load(FIXTURES / f"{name}.npz") as file:
        return dict(file)


@pytest.fixture(scope="session")
def backbone() -> Callable[[str], LoadedFlashNext]:
    """The bare model of a fixture checkpoint, in float32; loaded once."""
    return _load_backbone


@pytest.fixture(scope="session")
def served() -> Callable[[str], ServedModel]:
    """A fixture checkpoint, or nano, as the engine gets it; loaded once."""
    return _load_served


@pytest.fixture(scope="session")
def references() -> Callable[[str], References]:
    """What the reference implementation computed, by file name without its ending."""
    return _load_references


@pytest.fixture
def copy_checkpoint(tmp_path: Path) -> Callable[[str], Path]:
    """A fixture checkpoint in a folder of its own, to be damaged."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(FIXTURES / name, tmp_path / name))

    return copy


@pytest.fixture(scope="session")
def feed() -> Callable[..., Floats]:
    """Run tokens through a served model in chunks: logits (V,) of the last one. An empty state if none is given."""

    def run(model: ServedModel, state: Any, tokens: tuple[int, ...], chunk: int = 10_000) -> Floats:
        logits = mx.zeros((1, 1))
        for start in range(0, len(tokens), chunk):
            logits = model.forward([Segment(state=state, token_ids=tokens[start : start + chunk])]).logits[0]
            mx.eval(logits, state.arrays())
        return np.array(logits)[0]

    return run


@pytest.fixture(scope="session")
def decode_greedily(feed: Callable[..., Floats]) -> Callable[..., list[int]]:
    """The most likely continuation of a prompt, one cached step per token."""

    def decode(model: ServedModel, prompt: tuple[int, ...], count: int, chunk: int = 10_000) -> list[int]:
        state = model.build_state()
        logits = feed(model, state, prompt, chunk)
        tokens = [int(logits.argmax())]
        while len(tokens) < count:
            tokens.append(int(feed(model, state, (tokens[-1],)).argmax()))
        return tokens

    return decode
