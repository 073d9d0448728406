"""The `text_config` of a `qwen4_exp` checkpoint: fields named as in config.json, checked against each other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from server.errors import CheckpointInvalid, ModelUnsupported

MODEL_TYPES = frozenset({"qwen4_exp", "qwen4_exp_text"})
"""`model_type` of the whole checkpoint and of a text-only save."""

DRAFTER_TYPES = frozenset({"qwen4_exp_mtp"})
"""`model_type` of a folder that holds the drafting head alone."""

SPARSE_TYPES = frozenset({"full_attention", "qwen_sparse_attention", "indexed_attention"})
"""Names seen for the sparse attention layers; all mean the same layer, with an indexer."""

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
"""A width or a number of things: what the dimension of an array can be."""
Few = Annotated[int, msgspec.Meta(ge=1, le=4096)]
"""A number of things of which each takes time to build; far more than any checkpoint has."""


class RopeParameters(msgspec.Struct, frozen=True):
    """Rotary positions. The multimodal sections are not needed: for text all three axes are equal."""

    rope_theta: Annotated[float, msgspec.Meta(gt=0, le=1e15)] = 10_000_000.0
    rope_type: str | None = None
    type: str | None = None
    partial_rotary_factor: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None

    @property
    def kind(self) -> str:
        """The scaling scheme; some files spell the key `type`."""
        return self.rope_type or self.type or "default"


class FlashNextConfig(msgspec.Struct, frozen=True):
    """Geometry of the text backbone. Keys of config.json that do not change the computation are ignored."""

    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Few
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    linear_num_key_heads: Count
    linear_num_value_heads: Count
    linear_key_head_dim: Count
    linear_value_head_dim: Count
    num_experts: Count
    num_experts_per_tok: Count
    moe_intermediate_size: Count
    shared_expert_intermediate_size: Count
    hc_count: Few
    hc_lowrank: Count
    indexer_n_heads: Count
    indexer_head_dim: Count
    indexer_budget: Count
    indexer_compress_ratio: Count
    eos_token_id: int | list[int]
    """The n-gram hash starts afresh after it (the first, when a list); generation may stop on others."""
    max_position_embeddings: Count = 262_144
    layer_types: list[str] | None = None
    full_attention_interval: Count = 4
    """Only a fallback for a missing `layer_types`."""
    indexer_kv_heads: Literal[1] = 1
    linear_conv_kernel_dim: Annotated[int, msgspec.Meta(ge=2, le=4096)] = 4
    rms_norm_eps: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1e-6
    hidden_act: Literal["silu"] = "silu"
    output_gate_type: Literal["sigmoid", "silu"] | None = None
    attention_bias: Literal[False] = False
    norm_topk_prob: bool = True
    tie_word_embeddings: bool = False
    partial_rotary_factor: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.25
    rope_parameters: RopeParameters = RopeParameters()
    ple_layer_ids: list[Annotated[int, msgspec.Meta(ge=1)]] = []
    """Counted from one: id 2 is the layer at index 1."""
    ple_embed_dim: Count = 1
    ple_conv_kernel_size: Annotated[int, msgspec.Meta(ge=2, le=4096)] = 4
    ngram_size: Annotated[int, msgspec.Meta(ge=2, le=64)] = 3
    heads_per_ngram: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    ngram_vocab_size_base: Annotated[int, msgspec.Meta(ge=2, le=2**31 - 1)] = 20_000_000
    make_ngram_vocab_size_divisible_by: Count = 128
    seed: int = 1234

    @property
    def hash_eos(self) -> int:
        """The token after which n-grams start afresh."""
        return self.eos_token_id if isinstance(self.eos_token_id, int) else self.eos_token_id[0]

    @property
    def gate_act(self) -> str:
        """What the output gate of the linear attention goes through: `sigmoid` or `silu`."""
        return self.output_gate_type or self.hidden_act

    @property
    def rope_dim(self) -> int:
        """How many leading columns of a head are rotated."""
        return int(self.head_dim * (self.rope_parameters.partial_rotary_factor or self.partial_rotary_factor))

    @property
    def stream_width(self) -> int:
        """Columns of the widened stream: all residual streams side by side."""
        return self.hc_count * self.hidden_size

    @property
    def ngram_heads(self) -> int:
        """Table rows that one token looks up in one PLE layer."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def ple_indices(self) -> tuple[int, ...]:
        """Indices, from zero, of the layers that add n-gram embeddings; ascending."""
        return tuple(sorted(number - 1 for number in self.ple_layer_ids))

    @property
    def sparse_layers(self) -> tuple[bool, ...]:
        """For each layer whether it is sparse attention (else it is linear attention)."""
        if self.layer_types is None:
            return tuple((i + 1) % self.full_attention_interval == 0 for i in range(self.num_hidden_layers))
        return tuple(name in SPARSE_TYPES for name in self.layer_types)


def parse_config(raw: dict[str, Any], where: str) -> FlashNextConfig:
    """The geometry in a parsed config.json; `where` names the file in errors.

    Raises:
        CheckpointInvalid: a field is missing, of the wrong type, or contradicts another.
        ModelUnsupported: a rope scaling that is not built.
    """
    fields = raw.get("text_config", raw)
    if isinstance(fields, dict) and "tie_word_embeddings" in raw:
        fields = {"tie_word_embeddings": raw["tie_word_embeddings"]} | fields
    try:
        config = msgspec.convert(fields, FlashNextConfig)
    except msgspec.ValidationError as problem:
        raise CheckpointInvalid(f"{where}, text_config: {problem}.") from None
    if complaint := _find_contradiction(config):
        raise CheckpointInvalid(f"{where}, text_config: {complaint}.")
    if config.rope_parameters.kind != "default":
        raise ModelUnsupported(
            f"{where} asks for rope_type {config.rope_parameters.kind!r}; only 'default' is built for this model."
        )
    return config


def _find_contradiction(config: FlashNextConfig) -> str | None:
    """The first rule between fields that does not hold, in words."""
    kinds = config.layer_types
    unknown = sorted(set(kinds or ()) - SPARSE_TYPES - {"linear_attention"})
    eos_ids = [config.eos_token_id] if isinstance(config.eos_token_id, int) else config.eos_token_id
    rules = (
        (kinds is None or len(kinds) == config.num_hidden_layers, "layer_types must name num_hidden_layers layers"),
        (not unknown, f"unknown layer type {', '.join(unknown)}"),
        (
            config.num_attention_heads % config.num_key_value_heads == 0,
            _divides("num_key_value_heads", "num_attention_heads"),
        ),
        (
            config.linear_num_value_heads % config.linear_num_key_heads == 0,
            _divides("linear_num_key_heads", "linear_num_value_heads"),
        ),
        (config.num_experts_per_tok <= config.num_experts, "num_experts_per_tok is more than num_experts"),
        (
            config.indexer_budget % config.indexer_compress_ratio == 0,
            _divides("indexer_compress_ratio", "indexer_budget"),
        ),
        (config.rope_dim % 2 == 0 and config.rope_dim > 0, "the rotary width must be even and not zero"),
        (config.rope_dim <= config.indexer_head_dim, "the rotary width is more than indexer_head_dim"),
        (
            all(i < config.num_hidden_layers for i in config.ple_indices),
            "ple_layer_ids names a layer that there is not",
        ),
        (
            not config.ple_layer_ids or config.ple_embed_dim % config.ngram_heads == 0,
            "ple_embed_dim must divide into (ngram_size - 1) * heads_per_ngram heads",
        ),
        (
            bool(eos_ids) and all(0 <= token < config.vocab_size for token in eos_ids),
            "eos_token_id must lie inside the vocabulary",
        ),
    )
    return next((complaint for holds, complaint in rules if not holds), None)


def _divides(divisor: str, number: str) -> str:
    return f"{divisor} must divide {number}"
