"""The output head in panels, and long prompts in passes, compute what they do in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from server.models.cache import Segment, ServedModel
from server.models.flash_next import linear, model
from server.models.flash_next.linear import HeadLinear


@pytest.mark.parametrize("outputs", [1, 7, 300, 301])
@pytest.mark.parametrize("rows", [1, 4, 30])
def test_a_head_in_panels_equals_the_whole(monkeypatch: pytest.MonkeyPatch, outputs: int, rows: int) -> None:
    monkeypatch.setattr(linear, "SMALL_PRODUCT", 8 * 16 * 100)
    stored, x = nn.Linear(16, outputs, bias=False), mx.random.normal((rows, 16))
    head = HeadLinear(stored)
    panels: list[mx.array] = head.get("panels", [])
    assert len(panels) == (4 if outputs == 301 else 3 if outputs == 300 else 0)
    got, expected = head(x), stored(x)
    assert got.shape == expected.shape
    assert np.abs(np.array(got - expected)).max() < 1e-5


def test_a_head_that_is_packed_or_very_wide_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = nn.QuantizedLinear(64, 512, bias=False, group_size=64, bits=4)
    monkeypatch.setattr(linear, "SMALL_PRODUCT", 8 * 64 * 256)
    assert "panels" not in HeadLinear(packed)
    assert "panels" not in HeadLinear(nn.Linear(64, 256 * 9, bias=False))
    assert "panels" in HeadLinear(nn.Linear(64, 256 * 8, bias=False))


@pytest.mark.parametrize("name", ["tiny", "tiny2", "tiny_mlx_q4"])
@pytest.mark.parametrize("length", [16, 17, 40, 100])
def test_a_prompt_in_several_passes_equals_one(
    served: Callable[[str], ServedModel], feed: Any, monkeypatch: pytest.MonkeyPatch, name: str, length: int
) -> None:
    tokens = tuple(int(token) for token in np.random.default_rng(5).integers(4, 500, length + 3))
    served_model = served(name)

    def run() -> tuple[list[Any], list[Any]]:
        states = [served_model.build_state() for _ in range(3)]
        feed(served_model, states[0], (9, 8))
        segments = [
            Segment(states[0], (7,)),
            Segment(states[1], tokens[:length]),
            Segment(states[2], tokens[:5], "all"),
        ]
        forward = served_model.forward(segments)
        results = [*forward.logits, *forward.streams]
        after = [feed(served_model, state, tokens[-3:]) for state in states]
        return [np.array(result) for result in results], [*after, *(state.offset for state in states)]

    whole = run()
    monkeypatch.setattr(model, "PASS_ROWS", 16)
    parts = run()
    for ours, theirs in zip((*parts[0], *parts[1]), (*whole[0], *whole[1]), strict=True):
        assert np.shape(ours) == np.shape(theirs)
        assert np.abs(ours - theirs).max() < 1e-4
