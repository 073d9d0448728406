"""Steps run by hand on real models, with and without a prefix cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from server.engine.prefix.cache import PrefixCache
from server.engine.request import EngineRequest, Sampling
from server.engine.step import StepRunner
from server.events import EngineEvent, PrefillAdvanced, PromptLookedUp, SequenceEnded, TokensEmitted
from server.models.cache import ServedModel
from server.models.folder import EMBEDDED_FOLDER
from server.models.loader import load_model
from server.policy import EnginePolicy

FIXTURES = Path(__file__).parents[2] / "fixtures" / "flash_next"

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 3072,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


class Desk:
    """One engine's steps: what each request got, and what of its prompt was cached."""

    def __init__(self, model: ServedModel, **policy: Any) -> None:
        self.policy = EnginePolicy(**(dict[str, Any](prefill_chunk_tokens=100, prefix_cache_gib=1.0) | policy))
        self.facts = model.facts
        self.runner = StepRunner(model)
        self.events: list[EngineEvent] = []
        self._asked = 0

    @property
    def cache(self) -> PrefixCache:
        return self.runner._resumer._cache

    def add(self, prompt: Sequence[int], max_tokens: int = 12, **more: Any) -> str:
        self._asked += 1
        request_id = f"r{self._asked}"
        sampling = Sampling(temperature=0)
        request = EngineRequest(request_id, tuple(prompt), max_tokens, sampling, more.pop("stops", frozenset()), **more)
        self.events.extend(self.runner.add(request))
        return request_id

    def step(self) -> None:
        self.events.extend(self.runner.run_step(self.policy))

    def rest(self) -> tuple[EngineEvent, ...]:
        """What the engine does now and then while there is no step."""
        events = self.runner.follow(self.policy)
        self.events.extend(events)
        return events

    def set(self, **policy: Any) -> None:
        self.policy = msgspec.structs.replace(self.policy, **policy)

    def finish(self) -> None:
        while not self.runner.idle:
            self.step()

    def cancel(self, request_id: str) -> None:
        self.events.extend(self.runner.cancel(request_id))

    def run(self, prompt: Sequence[int], max_tokens: int = 12, **more: Any) -> list[int]:
        """The greedy tokens after a prompt."""
        self.last = self.add(prompt, max_tokens, **more)
        self.finish()
        ends = [event for event in self.events if isinstance(event, SequenceEnded) and event.request_id == self.last]
        assert [end.outcome for end in ends] in (["length"], ["stop"]), ends
        return self.tokens(self.last)

    def tokens(self, request_id: str) -> list[int]:
        emitted = [e for e in self.events if isinstance(e, TokensEmitted) and e.request_id == request_id]
        return [token for event in emitted for token in event.token_ids]

    def looked_up(self, request_id: str | None = None) -> PromptLookedUp:
        wanted = request_id or self.last
        (found,) = [e for e in self.events if isinstance(e, PromptLookedUp) and e.request_id == wanted]
        return found

    def computed(self, request_id: str | None = None) -> int:
        """Prompt tokens that were run."""
        wanted = request_id or self.last
        return sum(e.chunk_tokens for e in self.events if isinstance(e, PrefillAdvanced) and e.request_id == wanted)


DeskMaker = Callable[..., Desk]


@cache
def _load(name: str, folder: Path) -> ServedModel:
    if name == "llama":
        mx.random.seed(5)
        model = llama.Model(llama.ModelArgs.from_dict(LLAMA))
        (folder / "config.json").write_text(json.dumps(LLAMA))
        mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(EMBEDDED_FOLDER / file, folder / file)
        return load_model(str(folder), "auto")
    return load_model("nano" if name == "nano" else str(FIXTURES / name), "auto")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ServedModel]:
    """A model by name; loaded once."""
    folder = tmp_path_factory.mktemp("llama")
    return lambda name: _load(name, folder)


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the second tier's files are in a test."""
    monkeypatch.setattr("server.engine.prefix.store.find_root", lambda: tmp_path / "prefix")
    return tmp_path / "prefix"  # type: ignore[return-value]


@pytest.fixture
def desk(served: Callable[[str], ServedModel]) -> Iterator[DeskMaker]:
    """Builds steps on a model by name; each with a prefix cache of its own."""
    made: list[Desk] = []

    def build(name: str = "nano", **policy: Any) -> Desk:
        made.append(Desk(served(name), **policy))
        return made[-1]

    yield build
    for each in made:
        each.runner.close(5)


@pytest.fixture(scope="session")
def cold(served: Callable[[str], ServedModel]) -> Callable[..., list[int]]:
    """What a model says greedily after a prompt, without a cache and without drafts; each asked once."""

    @cache
    def run(name: str, prompt: tuple[int, ...], max_tokens: int = 12, stops: frozenset[int] = frozenset()) -> list[int]:
        return Desk(served(name), prefix_cache_gib=0.0, mtp="off").run(prompt, max_tokens, stops=stops)

    return run


@pytest.fixture
def text() -> Callable[[int, int], tuple[int, ...]]:
    """So many random tokens of a seed; every model of the tests has them."""
    return lambda seed, count: tuple(int(t) for t in np.random.default_rng(seed).integers(4, 500, count))
