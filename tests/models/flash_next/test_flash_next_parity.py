"""Our forward pass against what the reference implementation computed for the same weights, in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from server.models.cache import ServedModel
from server.models.flash_next import attend, packed
from server.models.flash_next.attend import BlockAttention
from server.models.flash_next.checkpoint import LoadedFlashNext
from server.models.flash_next.layer import DecoderLayer
from server.models.flash_next.model import FlashNext
from server.models.flash_next.packed import Piece
from server.models.flash_next.state import FlashNextState

TOLERANCE = 1e-4
"""Sane for a float32 port; typical mistakes change logits by 0.4 and more."""

Load = Callable[[str], LoadedFlashNext]
Serve = Callable[[str], ServedModel]
Refer = Callable[[str], dict[str, npt.NDArray[Any]]]

CASES = [(name, length) for name in ("tiny", "tiny2") for length in (1, 7, 64, 200)]


def tokens_of(references: dict[str, npt.NDArray[Any]], length: int) -> tuple[int, ...]:
    return tuple(references[f"ids_{length}"].tolist())


def run(model: FlashNext, state: FlashNextState, tokens: tuple[int, ...]) -> mx.array:
    return model.run([Piece(state, tokens, keeps_trail=False)])


def check_close(ours: mx.array, theirs: npt.NDArray[Any], tolerance: float = TOLERANCE) -> None:
    difference = np.abs(np.array(ours) - theirs)
    assert ours.shape == theirs.shape
    assert difference.max() <= tolerance, f"row {int(difference.max(axis=-1).argmax())} is off by {difference.max()}"


@pytest.mark.parametrize(("name", "length"), CASES)
def test_logits_and_stream_equal_the_reference(backbone: Load, references: Refer, name: str, length: int) -> None:
    model, known = backbone(name).model, references(f"{name}_transformers")
    stream = run(model, model.build_state(), tokens_of(known, length))
    check_close(stream.flatten(1), known[f"hc_pre_{length}"])
    check_close(model.read_logits(stream), known[f"logits_{length}"])


@pytest.mark.parametrize(("name", "length"), [case for case in CASES if case[1] in (7, 64)])
def test_the_stream_after_every_layer_equals_the_reference(
    backbone: Load, references: Refer, monkeypatch: pytest.MonkeyPatch, name: str, length: int
) -> None:
    model, known, finish = backbone(name).model, references(f"{name}_transformers"), DecoderLayer.finish
    streams: list[mx.array] = []

    def record(layer: DecoderLayer, *arguments: Any) -> mx.array:
        streams.append(finish(layer, *arguments))
        return streams[-1]

    monkeypatch.setattr(DecoderLayer, "finish", record)
    monkeypatch.setattr(packed, "FEW_ROWS", 0)  # what is compiled cannot be looked into
    run(model, model.build_state(), tokens_of(known, length))
    check_close(mx.stack(streams).flatten(2), known[f"layers_{length}"])


@pytest.mark.parametrize(("name", "length"), CASES)
def test_rows_fed_one_by_one_equal_the_reference(backbone: Load, references: Refer, name: str, length: int) -> None:
    model, known = backbone(name).model, references(f"{name}_transformers")
    state, streams, logits = model.build_state(), [], []
    for token in tokens_of(known, length):
        streams.append(run(model, state, (token,)))
        logits.append(model.read_logits(streams[-1]))
        mx.eval(streams[-1], logits[-1], state.arrays())
    check_close(mx.concatenate(streams).flatten(1), known[f"hc_pre_{length}"])
    check_close(mx.concatenate(logits), known[f"logits_{length}"])


@pytest.mark.parametrize("length", [7, 64, 200])
def test_quantized_logits_equal_the_reference(backbone: Load, references: Refer, length: int) -> None:
    model, known = backbone("tiny_mlx_q4").model, references("tiny_mlx_q4_mlxvlm")
    stream = run(model, model.build_state(), tokens_of(references("tiny_transformers"), length))
    check_close(model.read_logits(stream), known[f"logits_{length}"], tolerance=1e-3)


@pytest.mark.parametrize("chunk", [10_000, 64, 5])
@pytest.mark.parametrize(("name", "length"), [case for case in CASES if case[1] in (64, 200)])
def test_chosen_tokens_equal_the_reference(
    backbone: Load, references: Refer, monkeypatch: pytest.MonkeyPatch, name: str, length: int, chunk: int
) -> None:
    loaded, known = backbone(name), references(f"{name}_transformers")
    model, select, masks = loaded.model, BlockAttention.select_mask, list[mx.array]()

    def record(attention: BlockAttention, *arguments: Any) -> mx.array:
        masks.append(select(attention, *arguments))
        return masks[-1]

    monkeypatch.setattr(BlockAttention, "select_mask", record)
    monkeypatch.setattr(BlockAttention, "uses_host", lambda *_: False)
    monkeypatch.setattr(attend, "MASK_ROWS", length)  # one mask for each layer and call
    monkeypatch.setattr(packed, "FEW_ROWS", 0)  # few rows choose blocks, not masks
    state, tokens = model.build_state(), tokens_of(known, length)
    for start in range(0, length, chunk):
        run(model, state, tokens[start : start + chunk])
    sparse = np.flatnonzero(loaded.config.sparse_layers)
    for place, index in enumerate(sparse):
        recorded = masks[place :: len(sparse)]
        rows = [np.pad(np.array(mask), [(0, 0), (0, length - mask.shape[1])]) for mask in recorded]
        ours = np.concatenate(rows)
        theirs = np.unpackbits(known[f"qsa_mask_{length}_layer{index}"], axis=1)[:, :length]
        # Calls that end within the budget ask for no mask; what they would see is the causal prefix.
        dense = length - len(ours)
        assert (theirs[:dense] == np.tri(dense, length, dtype=np.uint8)).all()
        assert (ours == theirs[dense:]).all()
        assert not (theirs == np.tri(length, length, dtype=np.uint8)).all(), "a reference that would not tell"


@pytest.mark.parametrize(
    ("name", "length", "chunk"),
    [(*case, chunk) for case in CASES for chunk in (10_000, 64, 5, 1) if chunk in (10_000, 1) or chunk < case[1]],
)
def test_greedy_tokens_equal_the_reference_however_the_prompt_is_chunked(
    served: Serve,
    references: Refer,
    decode_greedily: Callable[..., list[int]],
    name: str,
    length: int,
    chunk: int,
) -> None:
    known = references(f"{name}_transformers")
    ours = decode_greedily(served(name), tokens_of(known, length), 32, chunk)
    assert ours == known[f"greedy_{length}"].tolist()


@pytest.mark.parametrize(("name", "length"), CASES)
def test_greedy_tokens_without_a_cache_equal_the_reference(
    backbone: Load, references: Refer, name: str, length: int
) -> None:
    model, known = backbone(name).model, references(f"{name}_transformers")
    greedy = known[f"greedy_{length}"]
    # Row L - 1 + i of one pass over prompt and continuation is what an uncached run computes for token i.
    stream = run(model, model.build_state(), (*tokens_of(known, length), *greedy[:-1].tolist()))
    logits = model.read_logits(stream[length - 1 :])
    check_close(logits, known[f"greedy_logits_{length}"])
    assert np.array(logits).argmax(axis=-1).tolist() == greedy.tolist()
