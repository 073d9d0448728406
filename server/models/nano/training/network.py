"""The trunk as transformers has it, made fast enough to train on a CPU, and the draft head beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen4_exp import modeling_qwen4_exp as reference
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

balance_losses: list[Tensor] = []
"""How uneven the experts were used, one number per layer of the last training forward pass; the trainer clears it."""

Cache = tuple[Tensor, Tensor]


def norm_fused(self: nn.Module, x: Tensor) -> Tensor:
    """`Qwen4ExpTextRMSNorm.forward` by the fused operation."""
    weight = 1.0 + self.weight
    if self.group_size is None:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
    return F.rms_norm(x.unflatten(-1, (-1, self.group_size)), (self.group_size,), None, self.eps).flatten(-2) * weight


def index_densely(self: nn.Module, hidden: Tensor, positions: object, mask: Tensor, cache: object) -> Tensor:
    """`Qwen4ExpTextQSAIndexer.forward` inside the budget: every block is selected."""
    if cache is None and mask.shape[-1] // self.compress_ratio <= self.block_topk:
        return torch.ones((1, 1, 1, 1), dtype=torch.bool)
    return original_index(self, hidden, positions, mask, cache)


def mix_densely(self: nn.Module, hidden: Tensor) -> Tensor:
    """`Qwen4ExpTextSparseMoeBlock.forward` with all experts in one product: for four of them that is faster."""
    rows = hidden.flatten(0, -2)
    experts, top = self.gate.num_experts, self.gate.top_k
    odds = F.linear(rows, self.gate.weight).softmax(-1, dtype=torch.float)
    best, chosen = odds.topk(top, -1)
    share = torch.zeros_like(odds).scatter(-1, chosen, best / best.sum(-1, keepdim=True))  # (T, E)
    if self.training:
        used = (share.detach() > 0).float().mean(0)
        balance_losses.append((used * odds.mean(0)).sum() * experts / top)
    inner = self.experts.intermediate_dim
    gate, up = (rows @ self.experts.gate_up_proj.flatten(0, 1).t()).view(-1, experts, 2, inner).unbind(2)
    weighted = F.silu(gate) * up * share[:, :, None]  # (T, E, I)
    routed = weighted.flatten(1) @ self.experts.down_proj.permute(0, 2, 1).flatten(0, 1)
    shared = self.shared_expert(rows) * torch.sigmoid(self.shared_expert_gate(rows))
    return (routed + shared).view(hidden.shape)


original_index = reference.Qwen4ExpTextQSAIndexer.forward
REPLACEMENTS = (
    (reference.Qwen4ExpTextRMSNorm, norm_fused),
    (reference.Qwen4ExpTextQSAIndexer, index_densely),
    (reference.Qwen4ExpTextSparseMoeBlock, mix_densely),
)


@contextmanager
def faster_layers() -> Iterator[None]:
    """Within this, transformers' layers run by the functions above; equal up to rounding inside the budget."""
    originals = [kind.forward for kind, _ in REPLACEMENTS]
    try:
        for kind, forward in REPLACEMENTS:
            kind.forward = forward
        yield
    finally:
        for (kind, _), forward in zip(REPLACEMENTS, originals, strict=True):
            kind.forward = forward


def build_trunk(config: Qwen4ExpTextConfig) -> nn.Module:
    """A trunk with fresh weights: projections scaled by fan-in, those that write to the streams also by depth."""
    trunk = reference.Qwen4ExpForCausalLM(config)
    for name, parameter in trunk.named_parameters():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")):
            parameter.data.mul_((2 * config.num_hidden_layers) ** -0.5)
        elif parameter.dim() == 2 and "proj" in name and "ngram" not in name:
            parameter.data.mul_(0.6 / config.initializer_range * parameter.shape[-1] ** -0.5)
    return trunk


def run_trunk(trunk: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The widened stream (B, T, N*H) before the final mixer, and the mixed rows (B, T, H) after it."""
    inner = trunk.model
    batch, length = tokens.shape
    rows = inner.embed_tokens(tokens)
    positions = inner.rotary_emb(rows, torch.arange(length).view(1, 1, -1).expand(3, batch, -1))
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    stream = rows.repeat(1, 1, inner.config.hc_count)
    for layer in inner.layers:
        stream = layer(
            stream,
            position_embeddings=positions,
            attention_mask=causal,
            conv_mask=None,
            cache=None,
            ple_input_ids=tokens,
        )
    return stream, inner.hyper_connection_mixer(stream)


class DraftHead(nn.Module):
    """The multi-token-prediction head: stream of the trunk and next token in, through one sparse layer."""

    def __init__(self, config: Qwen4ExpTextConfig) -> None:
        super().__init__()
        self.count = config.hc_count
        hidden, eps = config.hidden_size, config.rms_norm_eps
        own = config.to_dict() | {"num_hidden_layers": 1, "layer_types": ["indexed_attention"], "ple_layer_ids": []}
        layer_config = Qwen4ExpTextConfig(**own)
        layer_config._attn_implementation = "sdpa"
        self.pre_fc_norm_embedding = reference.Qwen4ExpTextRMSNorm(hidden, eps=eps)
        self.pre_fc_norm_hidden = reference.Qwen4ExpTextRMSNorm(hidden * self.count, eps=eps)
        self.fc_embedding = nn.Linear(hidden, hidden, bias=False)
        self.fc_hidden = nn.Linear(hidden, hidden, bias=False)
        self.layers = nn.ModuleList([reference.Qwen4ExpTextDecoderLayer(layer_config, 0)])
        self.hyper_connection_mixer = reference.Qwen4ExpTextGatedResidual(layer_config, use_combine=False)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(self, trunk: nn.Module, tokens: Tensor, stream: Tensor, depth: int) -> list[Tensor]:
        """For each depth d the mixed rows (B, T - d, H); row t predicts token t + 1 + d."""
        batch, length = tokens.shape
        cos, sin = trunk.model.rotary_emb(stream, torch.arange(length).view(1, 1, -1).expand(3, batch, -1))
        outputs: list[Tensor] = []
        earlier: list[Cache] = []
        for d in range(1, depth + 1):
            rows = length - d
            embedded = trunk.model.embed_tokens(tokens[:, d : d + rows])
            positions = (cos[:, d - 1 : d - 1 + rows], sin[:, d - 1 : d - 1 + rows])
            stream, mixed, cache = self.draft(embedded, stream[:, :rows], positions, earlier)
            earlier.append(cache)
            outputs.append(mixed)
        return outputs

    def draft(
        self, embedded: Tensor, stream: Tensor, positions: tuple[Tensor, Tensor], earlier: list[Cache]
    ) -> tuple[Tensor, Tensor, Cache]:
        """One depth for all rows at once: stream, mixed rows, and this depth's keys and values."""
        layer = self.layers[0]
        fused = self.fc_hidden(self.pre_fc_norm_hidden(stream).unflatten(-1, (self.count, -1)))
        fused = (fused + self.fc_embedding(self.pre_fc_norm_embedding(embedded)).unsqueeze(-2)).flatten(-2)
        rows, fused, strength = layer.attn_hyper_connection(fused)
        attended, cache = self.attend(layer.self_attn, rows, positions, earlier)
        fused = fused + (attended.unsqueeze(-2) * strength.unsqueeze(-1)).flatten(-2)
        rows, fused, strength = layer.mlp_hyper_connection(fused)
        fused = fused + (layer.mlp(rows).unsqueeze(-2) * strength.unsqueeze(-1)).flatten(-2)
        return fused, self.hyper_connection_mixer(fused), cache

    def attend(
        self, attention: nn.Module, rows: Tensor, positions: tuple[Tensor, Tensor], earlier: list[Cache]
    ) -> tuple[Tensor, Cache]:
        """As at run time: a row sees the first depth's keys up to itself, and its own chain of deeper ones."""
        split = (*rows.shape[:-1], -1, attention.head_dim)
        query, gate = attention.q_proj(rows).view(*rows.shape[:-1], -1, 2 * attention.head_dim).chunk(2, -1)
        query = attention.q_norm(query).transpose(1, 2)
        key = attention.k_norm(attention.k_proj(rows).view(split)).transpose(1, 2)
        value = attention.v_proj(rows).view(split).transpose(1, 2)
        query, key = reference.apply_rotary_pos_emb(query, key, *positions)
        length = query.shape[2]
        seen = [(k[:, :, :length], v[:, :, :length]) for k, v in earlier] + [(key, value)]
        causal, own = torch.ones(length, length, dtype=torch.bool).tril(), torch.eye(length, dtype=torch.bool)
        mask = torch.cat([causal] + [own] * len(earlier), 1)
        keys, values = (torch.cat(parts, 2) for parts in zip(*seen, strict=True))
        out = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask[None, None], scale=attention.scaling, enable_gqa=True
        )
        out = out.transpose(1, 2).flatten(2) * torch.sigmoid(gate.flatten(2))
        return attention.o_proj(out), (key, value)
