"""Architectures of mlx-lm behind our seam: equal to calling mlx-lm itself, and honest about returning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama, mamba
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import load_model as load_lm_model

from server.errors import CheckpointInvalid, ModelUnsupported
from server.models.cache import SequenceState, ServedModel, StorableState
from server.models.folder import EMBEDDED_FOLDER
from server.models.loader import load_model
from server.models.weights import name_arrays
from server.models.zoo import ZooState, read_context_limit

VOCABULARY = 3072
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
SLIDING: dict[str, Any] = LLAMA | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
MAMBA: dict[str, Any] = {
    "model_type": "mamba",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "state_size": 8,
    "num_hidden_layers": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
}
TOKENS = tuple(int(token) for token in np.random.default_rng(11).integers(20, VOCABULARY, 120))


def write_checkpoint(folder: Path, config: dict[str, Any]) -> Path:
    """A random model with nano's tokenizer, as a folder."""
    kind = {"llama": llama, "mamba": mamba}[config["model_type"]]
    mx.random.seed(5)
    model = kind.Model(kind.ModelArgs.from_dict(config))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), name_arrays(model))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED_FOLDER / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint folder by the name of its configuration."""
    configs = {"llama": LLAMA, "sliding": SLIDING, "mamba": MAMBA}
    return cache(lambda name: write_checkpoint(tmp_path_factory.mktemp("zoo") / name, configs[name]))


@pytest.fixture(scope="module")
def zoo(folder_of: Callable[[str], Path]) -> Callable[[str], ServedModel]:
    """The same, loaded by us."""
    return cache(lambda name: load_model(str(folder_of(name)), "auto"))


Load = Callable[[str], ServedModel]
Feed = Callable[..., Any]


@pytest.mark.parametrize("name", ["llama", "sliding", "mamba"])
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_greedy_tokens_equal_those_of_mlx_lm_itself(
    zoo: Load, folder_of: Callable[[str], Path], decode_greedily: Callable[..., list[int]], name: str, chunk: int
) -> None:
    model, _ = load_lm_model(folder_of(name))
    cache = make_prompt_cache(model)
    inputs, expected = TOKENS[:40], list[int]()
    for _ in range(24):
        logits = model(mx.array([inputs]), cache=cache)
        expected.append(int(np.array(logits[0, -1]).argmax()))
        inputs = (expected[-1],)
    assert decode_greedily(zoo(name), TOKENS[:40], 24, chunk) == expected


@pytest.mark.parametrize("name", ["llama", "sliding", "mamba"])
@pytest.mark.parametrize(("kept", "lost"), [(0, 5), (1, 1), (10, 3), (10, 30), (40, 2)])
def test_rolling_back_equals_never_having_run(zoo: Load, feed: Feed, name: str, kept: int, lost: int) -> None:
    model = zoo(name)
    plain, returned = model.build_state(), model.build_state()
    assert isinstance(returned, SequenceState)
    if kept:
        feed(model, plain, TOKENS[:kept])
        feed(model, returned, TOKENS[:kept])
    point = returned.checkpoint()
    for _ in range(2):  # a checkpoint outlives its first use
        feed(model, returned, TOKENS[-lost:], 1)
        returned.rollback(point)
        assert returned.offset == kept
    for start in range(50, 60):
        token = TOKENS[start : start + 1]
        assert np.abs(feed(model, plain, token) - feed(model, returned, token)).max() < 1e-5


@pytest.mark.parametrize("name", ["llama", "sliding", "mamba"])
@pytest.mark.parametrize(("begun", "chunk"), [(0, 3), (5, 1), (40, 7), (40, 1)])
def test_a_fork_and_its_origin_go_on_as_if_alone(zoo: Load, feed: Feed, name: str, begun: int, chunk: int) -> None:
    model = zoo(name)
    state = model.build_state()
    if begun:
        feed(model, state, TOKENS[:begun])
    fork = state.fork()
    assert isinstance(fork, SequenceState)
    ours, theirs = TOKENS[50:71], TOKENS[80:101]
    got: tuple[Any, ...] = ()
    for start in range(0, 21, chunk):  # by turns
        end = start + chunk
        got = feed(model, state, ours[start:end]), feed(model, fork, theirs[start:end])
    assert state.offset == fork.offset == begun + 21
    for logits, tail in zip(got, (ours, theirs), strict=True):
        assert np.abs(logits - feed(model, model.build_state(), TOKENS[:begun] + tail)).max() < 1e-4


def test_only_caches_that_can_be_cut_back_are_not_kept(zoo: Load, feed: Feed) -> None:
    model = zoo("sliding")
    state = model.build_state()
    assert isinstance(state, ZooState)
    feed(model, state, TOKENS[:5])
    kinds = [type(cache) for cache in state.caches]
    assert sorted(kind.__name__ for kind in kinds) == ["KVCache", "RotatingKVCache"]
    kept = state.checkpoint().kept
    assert kept[kinds.index(KVCache)] is None
    assert kept[kinds.index(RotatingKVCache)] is not None


@pytest.mark.parametrize("name", ["llama", "sliding", "mamba"])
def test_a_states_bytes_are_those_of_its_arrays(zoo: Load, feed: Feed, name: str) -> None:
    model = zoo(name)
    state = model.build_state()
    assert state.nbytes == 0
    feed(model, state, TOKENS[:5])
    assert state.nbytes == sum(array.nbytes for array in state.arrays()) > 0


@pytest.mark.parametrize("name", ["llama", "sliding", "mamba"])
def test_what_a_stream_takes_is_told_from_the_shapes_of_its_caches(zoo: Load, feed: Feed, name: str) -> None:
    """Rows by position grow with each token, a ring up to its size, a recurrent state not at all."""
    model = zoo(name)
    facts, state = model.facts, model.build_state()
    for start in range(0, 600, 100):
        feed(model, state, [token % VOCABULARY for token in range(start, start + 100)])
    plan = facts.plan_memory(1.0)
    assert state.nbytes <= plan.stream.at(600)
    exact = facts.stream_bytes + 600 * facts.token_bytes
    assert exact <= 1.6 * state.nbytes
    assert (facts.token_bytes > 0) == (name != "mamba")
    assert (facts.stream_bytes > 0) == (name != "llama")


def test_facts_of_a_llama(zoo: Load) -> None:
    facts = zoo("llama").facts
    assert (facts.id, facts.architecture, facts.vocab_size) == ("llama", "llama", VOCABULARY)
    assert (facts.context_limit_tokens, facts.dtype, facts.quantization) == (2048, "float32", "none")
    assert facts.weights_bytes == 4 * facts.parameters
    assert not facts.has_mtp
    assert not facts.embedded


@pytest.mark.parametrize(
    ("raw", "limit"),
    [
        ({"max_position_embeddings": 77}, 77),
        ({"n_positions": 78}, 78),
        ({"text_config": {"max_position_embeddings": 79}}, 79),
        ({"max_position_embeddings": None, "n_ctx": 80}, 80),
        ({}, 4096),
    ],
)
def test_the_context_limit_is_found_where_configurations_state_it(raw: dict[str, Any], limit: int) -> None:
    assert read_context_limit(raw) == limit


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_size": 48}, "llama"),
        ({"num_hidden_layers": 3}, "layers.2"),
        ({"num_hidden_layers": 1}, "layers.1"),
        ({"hidden_size": None}, "llama"),
        ({"hidden_size": "big"}, "llama"),
        ({"num_attention_heads": 0}, "llama"),
        ({"vocab_size": None}, "llama"),
        ({"model_file": "evil.py"}, "evil.py"),
        ({"quantization": {"group_size": 64}}, "llama"),
    ],
)
def test_a_configuration_that_does_not_fit_is_one_plain_sentence(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    folder = write_checkpoint(tmp_path / "odd", LLAMA)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    (folder / "evil.py").write_text("raise SystemExit('code from a checkpoint ran')")
    with pytest.raises((CheckpointInvalid, ModelUnsupported)) as caught:
        load_model(str(folder), "auto")
    message = str(caught.value)
    assert word in message
    assert "\n" not in message
    assert len(message) < 600


@pytest.mark.parametrize(("name", "anywhere"), [("llama", True), ("sliding", False), ("mamba", False)])
@pytest.mark.parametrize("begun", [1, 7, 40])
def test_a_state_built_again_of_its_parts_goes_on_like_the_first(
    zoo: Load, feed: Feed, name: str, anywhere: bool, begun: int
) -> None:
    model = zoo(name)
    state = model.build_state()
    feed(model, state, TOKENS[:begun])
    assert isinstance(state, StorableState)
    spans = [state.export_rows(0, 1), state.export_rows(1, begun)]
    fixed = state.export_fixed()
    mx.eval(spans, fixed.arrays)
    before = [np.array(array) for array in (*spans[0], *spans[1], *fixed.arrays.values())]
    assert fixed.fits_anywhere == anywhere
    built = [model.build_state() for _ in range(2)]
    for each in built:
        assert isinstance(each, StorableState)
        each.restore(spans, fixed)
        assert each.offset == begun
    for token in TOKENS[50:70]:
        logits = [feed(model, each, (token,)) for each in (state, *built)]
        assert np.array_equal(logits[0], logits[1])
        assert np.array_equal(logits[0], logits[2])
    after = [np.array(array) for array in (*spans[0], *spans[1], *fixed.arrays.values())]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def test_a_state_is_not_built_of_another_models_parts(zoo: Load, feed: Feed) -> None:
    parts: dict[str, Any] = {}
    for name in ("llama", "sliding", "mamba"):
        state = zoo(name).build_state()
        feed(zoo(name), state, TOKENS[:9])
        assert isinstance(state, StorableState)
        parts[name] = (state.export_rows(0, 9), state.export_fixed())
    for name, other in (("llama", "sliding"), ("sliding", "mamba"), ("mamba", "llama"), ("sliding", "llama")):
        state = zoo(name).build_state()
        assert isinstance(state, StorableState)
        rows, fixed = parts[other]
        with pytest.raises(ValueError, match=r"another model|in place of|make up"):
            state.restore([rows], fixed)
