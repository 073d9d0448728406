"""What norm weights are stored around, told by their means."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from server.errors import CheckpointInvalid
from server.models.flash_next.norm_convention import Centre, centre_norms, find_centre

TRUNK = "layers.{}.attn_hyper_connection.hc_norm.weight"
HEAD = "mtp.layers.0.attn_hyper_connection.hc_norm.weight"


@pytest.mark.parametrize(
    ("means", "centre"),
    [
        ([], None),
        ([0.0] * 48, "zero"),
        ([1.0] * 48, "one"),
        ([-0.07, 0.08, 0.2], "zero"),
        ([0.8, 1.4, 1.1], "one"),
        ([1.0] * 9 + [0.3], "one"),  # nine in ten
        ([1.0] * 8 + [0.3] * 2, None),
        ([0.0] * 9 + [0.9], "zero"),  # one in ten
        ([0.0] * 8 + [0.9] * 2, None),
        ([0.6] * 10, None),  # all above, but not around 1
        ([2.0] * 10, None),
        ([0.4] * 10, None),
        ([-0.8] * 10, None),
        ([0.75], "one"),
        ([0.25], "zero"),
        ([float("nan")] * 3, None),
    ],
)
def test_means_tell_what_norms_are_stored_around(means: list[float], centre: Centre | None) -> None:
    assert find_centre(means) == centre


def centred(**norms: float) -> dict[str, mx.array]:
    tensors = {name.replace("__", "."): mx.full((8,), value, mx.bfloat16) for name, value in norms.items()}
    return centre_norms(tensors | {"layers.0.mlp.gate.weight": mx.zeros((2, 2))}, "here")


def read(tensors: dict[str, mx.array]) -> dict[str, float]:
    return {name: float(np.array(tensor)[0]) for name, tensor in tensors.items() if tensor.ndim == 1}


def test_all_norms_become_factors_in_float32() -> None:
    norms = {TRUNK.format(0): 0.0, "layers.0.self_attn.q_norm.weight": 0.7, "layers.0.linear_attn.norm.weight": 0.9}
    found = centred(**norms)
    assert found["layers.0.self_attn.q_norm.weight"].dtype == mx.float32
    assert found["layers.0.linear_attn.norm.weight"].dtype == mx.bfloat16  # has no convention
    values = read({name: tensor.astype(mx.float32) for name, tensor in found.items()})
    assert values[TRUNK.format(0)] == 1.0
    assert values["layers.0.self_attn.q_norm.weight"] == pytest.approx(1.7, abs=0.01)
    assert values["layers.0.linear_attn.norm.weight"] == pytest.approx(0.9, abs=0.01)


def test_in_a_pack_around_one_norms_that_were_left_around_zero_are_known_by_their_means() -> None:
    found = read(centred(**{TRUNK.format(0): 1.0, HEAD: 1.125, "mtp.pre_fc_norm_hidden.weight": 0.25}))
    assert found == {TRUNK.format(0): 1.0, HEAD: 1.125, "mtp.pre_fc_norm_hidden.weight": 1.25}


@pytest.mark.parametrize(("trunk", "head"), [(0.0, 1.0), (1.0, 0.0), (0.125, 0.125), (1.0, 1.0)])
def test_trunk_and_head_may_come_from_different_programs(trunk: float, head: float) -> None:
    found = read(centred(**{TRUNK.format(0): trunk, HEAD: head, "mtp.layers.0.self_attn.k_norm.weight": head}))
    assert found[TRUNK.format(0)] == (trunk if trunk == 1 else trunk + 1)
    assert found[HEAD] == found["mtp.layers.0.self_attn.k_norm.weight"] == (head if head == 1 else head + 1)


def test_a_head_whose_norms_do_not_tell_is_as_its_trunk() -> None:
    assert read(centred(**{TRUNK.format(0): 0.0, HEAD: 0.625}))[HEAD] == 1.625


def test_norms_of_neither_kind_are_refused() -> None:
    with pytest.raises(CheckpointInvalid, match="here stores norm weights neither around 0 nor around 1"):
        centred(**{TRUNK.format(i): 4.0 for i in range(3)})


def test_without_a_norm_that_tells_all_are_around_zero() -> None:
    """Such a checkpoint lacks tensors, which is told when they are counted."""
    assert read(centred(**{"layers.0.self_attn.q_norm.weight": 0.5})) == {"layers.0.self_attn.q_norm.weight": 1.5}


@pytest.mark.parametrize(
    "name",
    [
        TRUNK.format(0),
        HEAD,
        "mtp.hyper_connection_mixer.hc_norm.weight",
        "hyper_connection_mixer.hc_norm.weight",
        "layers.3.self_attn.indexer.k_layernorm.weight",
    ],
)
@pytest.mark.parametrize("kind", [mx.int16, mx.uint8])
def test_norms_of_whole_numbers_are_refused(name: str, kind: mx.Dtype) -> None:
    tensors = {TRUNK.format(0): mx.zeros((8,)), name: mx.ones((8,), kind)}
    with pytest.raises(CheckpointInvalid, match=rf"here: {name} is stored as {str(kind).rpartition('.')[2]}"):
        centre_norms(tensors, "here")
