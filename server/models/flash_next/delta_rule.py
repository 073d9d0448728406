"""The gated delta rule: what linear attention does to its state, a few rows at once or many in chunks.

    S <- decay * S;  S <- S + beta * (v - S k) k^T;  o = S q

All in float32. Queries and keys are normalised and queries scaled by the caller.
"""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np
from mlx_lm.models.gated_delta import gated_delta_kernel

CHUNK = 16
"""Rows solved at once. Source: 512 rows, 4 heads of 32 take 8, 10, 19 ms in chunks of 16, 32, 64 (2 x86 cores, MLX
0.32.4, 2026-11-30)."""
BLOCK_UP_TO = 8
"""Calls of so few rows, verifications, are solved as one block: 4 rows of 4 heads of 32 in 0.24 ms, one after the other
in 0.28 (2 x86 cores, MLX 0.32.4, 2026-11-30)."""
LOG_NOTHING = 1e4
"""A decay of exp(-1e4) is zero in float32; infinity would make zero times infinity of a mask."""


Trail = dict[str, list[mx.array]]
"""What a return into the rows of a call needs: what each row changed, or the inputs to compute that from."""


def run_delta_rule(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array, Trail]:
    """Outputs (T, Hv, Dv) of T rows, the state after them, and the way back to the state after fewer.

    q, k (T, Hk, Dk); v (T, Hv, Dv); log_decay, beta (T, Hv); state (1, Hv, Dv, Dk). Value heads share key heads in
    consecutive groups.
    """
    inputs: Trail = {"inputs": [k, v, log_decay, beta]}
    if _has_kernel(k.shape[-1]):
        batched = (q[None], k[None], v[None], mx.exp(log_decay)[None], beta[None])
        out, state = gated_delta_kernel(*batched, state)
        return out[0], state, inputs
    repeat = v.shape[1] // k.shape[1]
    if repeat > 1:
        q, k = mx.repeat(q, repeat, axis=1), mx.repeat(k, repeat, axis=1)
    if q.shape[0] == 1:
        return *run_row(q, k, v, log_decay, beta, state), inputs
    if q.shape[0] <= BLOCK_UP_TO:
        return run_block(q, k, v, log_decay, beta, state)
    return *run_chunks(q, k, v, log_decay, beta, state), inputs


def return_within(trail: Trail, before: mx.array, rows: int) -> mx.array:
    """The state after the first `rows` (at least one) of the call that left the trail and began at `before`."""
    if "changes" in trail:
        return _end_block(trail["changes"], before[0], rows)
    k, v, log_decay, beta = (part[:rows] for part in trail["inputs"])
    return run_delta_rule(k, k, v, log_decay, beta, before)[1]  # the queries change no state


def run_row(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """One row: the rule as it is written; as many key heads as value heads."""
    state = state * mx.exp(log_decay)[..., None, None]  # (1, H, Dv, Dk)
    key = k[:, :, None]  # (1, H, 1, Dk)
    known = (state * key).sum(axis=-1, keepdims=True)  # (1, H, Dv, 1)
    state = state + beta[..., None, None] * (v[..., None] - known) * key
    return (state * q[:, :, None]).sum(axis=-1), state


def run_block(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array, Trail]:
    """A few rows at once; as many key heads as value heads. The algebra of `run_chunks` in fewer operations."""
    rows, inner = q.shape[0], state[0]  # (H, Dv, Dk)
    both = mx.contiguous(mx.concatenate([k, q], axis=0).swapaxes(0, 1))  # (H, 2T, Dk)
    keys = both[:, :rows]
    on_state, on_keys = both @ inner.swapaxes(1, 2), both @ keys.swapaxes(1, 2)  # (H, 2T, Dv), (H, 2T, T)
    upto, before, later = _triangles(rows)
    total = (upto @ log_decay).T[..., None]  # (H, T, 1), the log of the decay since the block began
    ratio = mx.exp(total - total.swapaxes(1, 2) + later)  # (H, T, T), 0 above the diagonal
    grown, strength = mx.exp(total), beta.T[..., None]
    change = strength * (v.swapaxes(0, 1) - grown * on_state[:, :rows])  # (H, T, Dv)
    change = _solve(-(strength * ratio * before * on_keys[:, :rows]), change)
    out = mx.addmm(grown * on_state[:, rows:], ratio * on_keys[:, rows:], change)
    trail = [keys, ratio, grown, change]
    return out.swapaxes(0, 1), _end_block(trail, inner, rows), {"changes": trail}


@cache
def _triangles(rows: int) -> tuple[mx.array, mx.array, mx.array]:
    """Ones up to the diagonal, ones before it, and what takes an exponential to zero after it."""
    upto = np.tri(rows, dtype=np.float32)
    return mx.array(upto), mx.array(upto - np.eye(rows, dtype=np.float32)), mx.array((upto - 1) * LOG_NOTHING)


def _solve(power: mx.array, right: mx.array) -> mx.array:
    """(I - P)^-1 B for strictly lower triangular P (H, T, T): the product of all I + P^(2^n), which ends at T."""
    right, reach = mx.addmm(right, power, right), 2
    while reach < power.shape[-1]:
        power = power @ power
        right, reach = mx.addmm(right, power, right), 2 * reach
    return right


def _end_block(trail: list[mx.array], before: mx.array, rows: int) -> mx.array:
    """The state (1, H, Dv, Dk) after the first `rows` of a block that began at `before` (H, Dv, Dk)."""
    keys, ratio, grown, change = trail
    last = rows - 1
    kept = ratio[:, last, :rows, None] * change[:, :rows]  # (H, T, Dv)
    return (grown[:, last:rows] * before + kept.swapaxes(1, 2) @ mx.contiguous(keys[:, :rows]))[None]


def run_chunks(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Many rows, a chunk at a time; as `run_delta_rule`, with as many key heads as value heads.

    Within a chunk the changes D of all rows solve (I + A) D = beta (V - decayed K S0^T) with A strictly lower
    triangular, so all chunks' inverses and products are batched and only a few products per chunk run in turn.
    Source: Yang et al., "Gated Delta Networks", arXiv 2412.06464, section 3.3; decays kept as ratios.
    """
    rows = q.shape[0]
    q, k, v = (_chunked(x) for x in (q, k, v))  # (n, H, C, D)
    beta = _chunked(beta[..., None])  # (n, H, C, 1)
    total = mx.cumsum(_chunked(log_decay[..., None]), axis=2)  # log of the decay since the chunk began
    below = mx.tri(CHUNK, CHUNK, 0, dtype=mx.bool_)
    # Masked before exp: above the diagonal the ratio would overflow.
    ratio = mx.exp(mx.where(below, total - total.swapaxes(2, 3), -mx.inf))  # (n, H, C, C)
    strict = ratio * mx.tri(CHUNK, CHUNK, -1)
    inverse = mx.linalg.tri_inv(mx.eye(CHUNK) + beta * strict * (k @ k.swapaxes(2, 3)), stream=mx.cpu)
    grown = mx.exp(total)
    from_values, from_state = inverse @ (beta * v), inverse @ (beta * grown * k)
    within, read = ratio * (q @ k.swapaxes(2, 3)), grown * q
    kept = (mx.exp(total[:, :, -1:] - total) * k).swapaxes(2, 3)  # (n, H, Dk, C)
    whole = grown[:, :, -1:]  # (n, H, 1, 1)
    inner = state[0].swapaxes(1, 2)  # (H, Dk, Dv)
    outputs: list[mx.array] = []
    for n in range(q.shape[0]):
        change = from_values[n] - from_state[n] @ inner  # (H, C, Dv)
        outputs.append(read[n] @ inner + within[n] @ change)
        inner = whole[n] * inner + kept[n] @ change
    out = mx.stack(outputs).swapaxes(1, 2).reshape(-1, *v.shape[1:2], v.shape[-1])  # (n * C, H, Dv)
    return out[:rows], inner.swapaxes(1, 2)[None]


def _chunked(x: mx.array) -> mx.array:
    """(T, H, D) as (n, H, C, D), with zeros at the end: rows without key, decay and beta leave the state alone."""
    missing = -x.shape[0] % CHUNK
    if missing:
        x = mx.pad(x, [(0, missing), (0, 0), (0, 0)])
    return x.reshape(-1, CHUNK, *x.shape[1:]).swapaxes(1, 2)


def _has_kernel(key_dim: int) -> bool:
    return mx.metal.is_available() and mx.default_device() == mx.gpu and key_dim % 32 == 0
