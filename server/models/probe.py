"""What the device can do, measured when a model is loaded: bytes per second, and the time of a few steps.

Called on the thread that will run the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import mlx.core as mx

from server.models.cache import Segment, SequenceState, ServedModel
from server.step_reads import CHUNK_TOKENS, WIDE_TOKENS, TimedSteps

COLUMNS = 4096
GPU_ROWS, CPU_ROWS = 16_384, 8_192
"""Of a float32 matrix that is read: 256 and 128 MiB, more than any cache of a chip holds."""

READINGS = 4
"""Of which the quickest counts: another program can only slow one down."""

REPEATS = 2
"""Of each timed step, after one that builds its kernels."""


@cache
def measure_bandwidth() -> float:
    """Bytes per second at which a matrix is read by a product with one row: what most of a decode step is.

    Once per process; 60 ms on two x86 cores. The matrix is let go of before any weights are loaded.
    """
    rows = GPU_ROWS if mx.default_device() != mx.cpu else CPU_ROWS
    matrix, row = mx.ones((rows, COLUMNS), mx.float32), mx.ones((1, rows), mx.float32)
    mx.eval(matrix, row, row @ matrix)
    quickest_s = min(_time_product(row, matrix) for _ in range(READINGS))
    nbytes = matrix.nbytes
    del matrix
    mx.clear_cache()
    return nbytes / quickest_s


def time_steps(model: ServedModel, build_far: Callable[[], SequenceState] | None = None) -> TimedSteps:
    """Run each kind of step on blank states, a few times; `build_far` makes one past the attention's budget."""
    far = build_far() if build_far else None
    return TimedSteps(
        far_tokens=far.offset if far else 0,
        far_s=_time_step(model, (1,), [far]) if far else 0.0,
        one_s=_time_step(model, (1,)),
        pair_s=_time_step(model, (1, 1)),
        wide_s=_time_step(model, (WIDE_TOKENS,)),
        chunk_s=_time_step(model, (CHUNK_TOKENS,)),
    )


def _time_product(row: mx.array, matrix: mx.array) -> float:
    began_s = time.perf_counter()
    mx.eval(row @ matrix)
    return time.perf_counter() - began_s


def _time_step(model: ServedModel, lengths: tuple[int, ...], states: Sequence[SequenceState] = ()) -> float:
    """The quickest of a few steps of segments that are so long, each on the states that the one before left."""
    states = states or [model.build_state() for _ in lengths]
    tokens = max(1, model.facts.vocab_size)
    times: list[float] = []
    for _ in range(1 + REPEATS):
        began_s = time.perf_counter()
        segments = [
            Segment(
                state=state,
                # Different ones, so that they go to different experts.
                token_ids=tuple((97 * place + 31 * index) % tokens for index in range(length)),
                rows="all" if length == WIDE_TOKENS else "last",
            )
            for place, (state, length) in enumerate(zip(states, lengths, strict=True))
        ]
        logits = model.forward(segments).logits
        mx.eval([each for each in logits if each is not None], [state.arrays() for state in states])
        times.append(time.perf_counter() - began_s)
    return min(times[1:])
