"""The mixture of experts of each layer: a few routed experts and one that every token passes."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.switch_layers import SwitchLinear

from server.models.flash_next.activations import sigmoid, silu
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.linear import GatheredLinear, JoinedLinear, SingleLinear
from server.models.flash_next.spans import FEW_ROWS_TOTAL

SORT_FROM = 64
"""Expert calls from which rows are sorted by expert first, so that each expert's weights are read once.

Source: `SwitchGLU` of mlx-lm 0.32.2.
"""


class Experts(nn.Module):
    """All routed experts; gate and up projection of an expert are one matrix, gate rows first, unless `split`."""

    def __init__(self, hidden: int, inner: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.widths = (hidden, inner)
        self.gate_up_proj = SwitchLinear(hidden, 2 * inner, count, bias=False)
        self.down_proj = SwitchLinear(inner, hidden, count, bias=False)

    def split(self) -> None:
        """Keep gate and up projection apart, for checkpoints that pack them in different ways; call before loading."""
        hidden, inner = self.widths
        self.gate_proj = SwitchLinear(hidden, inner, self.count, bias=False)
        self.up_proj = SwitchLinear(hidden, inner, self.count, bias=False)
        del self.gate_up_proj

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        names = ["gate_up_proj"] if "gate_up_proj" in self else ["gate_proj", "up_proj"]
        self.entries = [GatheredLinear(self.pop(name)) for name in names]
        self.leave = GatheredLinear(self.pop("down_proj"))

    def __call__(self, x: mx.array, chosen: mx.array) -> mx.array:
        """Rows x (T, H) through their chosen (T, K) experts: (T, K, H)."""
        if chosen.size < SORT_FROM:
            return self._run(x[:, None, None], chosen, False).squeeze(2)
        flat = chosen.flatten()
        order = mx.argsort(flat)
        by_expert = x[order // chosen.shape[1]]  # (T*K, H)
        plain = all(part.packed is None for part in (*self.entries, self.leave))
        if x.shape[0] > FEW_ROWS_TOTAL and plain and mx.default_device() == mx.cpu:
            result = self._run_groups(by_expert, flat)
        else:
            result = self._run(by_expert[:, None], flat[order], True)
        return result[mx.argsort(order)].reshape(*chosen.shape, -1)

    def _run_groups(self, rows: mx.array, chosen: mx.array) -> mx.array:
        """Rows (T*K, H) in the order of their experts; waits for the choice, to make one product of an expert's rows.

        The CPU backend multiplies gathered matrices row by row: 2.7 ms for 256 rows against 0.7.
        """
        ends = np.bincount(np.asarray(chosen), minlength=self.count).cumsum().tolist()
        gate, up = _halves([entry.multiply_groups(rows, ends) for entry in self.entries])
        return self.leave.multiply_groups(silu(gate) * up, ends)

    def _run(self, rows: mx.array, chosen: mx.array, ordered: bool) -> mx.array:
        gate, up = _halves([entry(rows, chosen, ordered) for entry in self.entries])
        return self.leave(silu(gate) * up, chosen, ordered)


def _halves(entered: list[mx.array]) -> list[mx.array]:
    """Gate and up rows, of one matrix or of two."""
    return list(mx.split(entered[0], 2, axis=-1)) if len(entered) == 1 else entered


class SharedExpert(nn.Module):
    """The expert that every token passes."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)


class SparseMoe(nn.Module):
    """Routes each row to its top experts and adds the gated shared expert."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.top = config.num_experts_per_tok
        self.renormalise = config.norm_topk_prob
        self.gate = nn.Linear(hidden, config.num_experts, bias=False)
        self.experts = Experts(hidden, config.moe_intermediate_size, config.num_experts)
        self.shared_expert = SharedExpert(hidden, config.shared_expert_intermediate_size)
        self.shared_expert_gate = nn.Linear(hidden, 1, bias=False)

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        shared = self.shared_expert
        self.inputs = JoinedLinear(self.gate, self.shared_expert_gate, shared.gate_proj, shared.up_proj)
        self.shared_down = SingleLinear(shared.down_proj)
        self.experts.prepare()
        del self.gate, self.shared_expert_gate, self.shared_expert

    def __call__(self, x: mx.array) -> mx.array:
        """Rows (T, H) to rows of the same shape."""
        router, shared_router, shared_gate, shared_up = self.inputs(x)
        chosen, share = self.route(router)
        routed = (share[:, None] @ self.experts(x, chosen)).squeeze(1)  # (T, 1, K) @ (T, K, H)
        shared = self.shared_down(silu(shared_gate) * shared_up)
        return routed + sigmoid(shared_router) * shared

    def route(self, router: mx.array) -> tuple[mx.array, mx.array]:
        """The experts (T, K) of each row by its router outputs (T, E), and each one's share."""
        outer = router.shape[-1] - self.top
        chosen = mx.argpartition(router, kth=outer, axis=-1)[:, outer:] if outer else mx.argsort(router, axis=-1)
        if self.renormalise:
            # Renormalised odds of the chosen are the softmax over the chosen alone.
            wanted = mx.take_along_axis(router, chosen, axis=-1)
            return chosen, mx.softmax(wanted, axis=-1, precise=True)
        odds = mx.softmax(router, axis=-1, precise=True)
        return chosen, mx.take_along_axis(odds, chosen, axis=-1)
