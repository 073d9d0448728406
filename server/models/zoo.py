"""Any other architecture that mlx-lm can load from a local folder, behind the same seam as our own.

Nothing is ever fetched, and no code that lies in a checkpoint is run.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING, get_total_parameters
from mlx_lm.utils import load_model as load_lm_model

from server.errors import CheckpointInvalid, ModelUnsupported
from server.models.cache import FixedPart, Forward, ModelFacts, RowArrays, Segment
from server.models.weights import count_bytes, name_arrays, name_dtype
from server.models.zoo_store import export_rows, export_whole, has_rows, measure_cache, restore_rows, restore_whole
from server.step_reads import StepReads, TimedSteps

CONTEXT_FIELDS = (
    "max_position_embeddings",
    "max_sequence_length",
    "model_max_length",
    "seq_length",
    "n_positions",
    "n_ctx",
    "max_seq_len",
)
"""Where configurations state how many tokens a sequence may have; the first that is there counts."""
CONTEXT_UNSTATED_TOKENS = 4096
"""Context limit when the configuration does not say; below what any current model was trained for."""
FAULTS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    ImportError,
    OSError,
)
"""What mlx-lm raises at configurations and tensors that it cannot use; it has no errors of its own."""
SHOWN_FAULT = 240
"""Characters of such an error that are shown."""


class ZooCheckpoint(msgspec.Struct, frozen=True):
    """A point in one sequence: how far it was, and the caches that cannot be cut back exactly."""

    owner: int
    offset: int
    kept: tuple[Any, ...]
    """For each cache a copy that shares its arrays, or None when it can be trimmed."""


class ZooState:
    """The caches that mlx-lm made for one sequence."""

    def __init__(self, caches: list[Any]) -> None:
        self.caches = caches
        self._offset = 0
        self._steps: list[ZooCheckpoint] = []

    @property
    def offset(self) -> int:
        """Tokens in the state."""
        return self._offset

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        """All arrays that the next step depends on, to be evaluated with it."""
        return [array for cache in self.caches for array in _held_arrays(cache)]

    def advance(self, tokens: int) -> None:
        """Count tokens that the caches have taken in."""
        self._offset += tokens
        self._steps = []

    def record_steps(self, steps: list[ZooCheckpoint]) -> None:
        """Remember a point before each token of the newest forward, so that a rollback can keep some of them."""
        self._steps = steps

    def checkpoint(self) -> ZooCheckpoint:
        """A point to return to. Returning to an earlier one makes those taken after it void."""
        kept = tuple(None if _trims_exactly(cache) else copy.deepcopy(cache) for cache in self.caches)
        return ZooCheckpoint(owner=id(self), offset=self._offset, kept=kept)

    def rollback(self, checkpoint: object, keep_tokens: int = 0) -> None:
        """Return to a checkpoint of this state, keeping the first tokens of the one forward since."""
        assert isinstance(checkpoint, ZooCheckpoint)
        assert checkpoint.owner == id(self), "a checkpoint of another sequence"
        target = checkpoint.offset + keep_tokens
        assert target <= self._offset, "a checkpoint that an earlier rollback made void, or more than was run"
        if keep_tokens and target < self._offset:
            checkpoint = next((step for step in self._steps if step.offset == target), None)
            assert checkpoint is not None, "the forward since the checkpoint was not run with rows 'all'"
        if target < self._offset or not keep_tokens:
            self._return_to(checkpoint)
        self._steps = []

    def fork(self) -> ZooState:
        """An independent copy; the next write to an array that both still hold copies it."""
        # Not a shallow copy: mlx-lm assigns into its arrays, which changes the array object itself.
        fork = ZooState(copy.deepcopy(self.caches))
        fork._offset = self._offset
        return fork

    def export_rows(self, first: int, end: int) -> RowArrays:
        """Keys and values of positions first..end-1, of each cache that is nothing else."""
        assert 0 <= first <= end <= self._offset, "rows that are there"
        return export_rows(self._with_rows, first, end)

    def export_fixed(self) -> FixedPart:
        """All other caches, whole."""
        return export_whole(self.caches, self._offset)

    def restore(self, spans: Sequence[RowArrays], fixed: FixedPart) -> None:
        """Make this empty state what it was where `fixed` was taken."""
        assert self._offset == 0, "an empty state"
        restore_whole(self.caches, fixed)
        caches = self._with_rows
        if any(len(span) != 2 * len(caches) for span in spans):
            raise ValueError("rows of a state of another model")
        for place, cache in enumerate(caches):
            keys, values = ([span[2 * place + side] for span in spans] for side in (0, 1))
            restore_rows(cache, keys, values, fixed.offset)
        self._offset = fixed.offset

    @property
    def _with_rows(self) -> list[Any]:
        return [cache for cache in self.caches if has_rows(cache)]

    def _return_to(self, checkpoint: ZooCheckpoint) -> None:
        surplus = self._offset - checkpoint.offset
        for index, kept in enumerate(checkpoint.kept):
            if kept is not None:
                self.caches[index] = copy.deepcopy(kept)
            elif surplus:
                self.caches[index].trim(surplus)
        self._offset = checkpoint.offset


class ServedZoo:
    """A model of mlx-lm. Built and called on the engine thread only."""

    def __init__(self, model: Any, facts: ModelFacts) -> None:
        self._model = model
        self._facts = facts

    @property
    def facts(self) -> ModelFacts:
        """What it is."""
        return self._facts

    def build_state(self) -> ZooState:
        """An empty state for a new sequence."""
        return ZooState(make_prompt_cache(self._model))

    @property
    def mtp(self) -> None:
        """No architecture of mlx-lm has a head that is served."""
        return None

    def rehearse(self) -> None:
        """Run a prefill and a decode step on a blank state, so that its kernels are built."""
        state = self.build_state()
        for tokens in ((0, 0), (0,)):
            mx.eval(self.forward([Segment(state=state, token_ids=tokens)]).logits[0], state.arrays())
        costs = [measure_cache(cache) for cache in state.caches]
        self._facts = msgspec.structs.replace(
            self._facts,
            stream_bytes=sum(cost.fixed_bytes for cost in costs),
            token_bytes=sum(cost.token_bytes for cost in costs),
            reads=StepReads(
                dense_bytes=self._facts.weights_bytes,
                context_bytes=sum(cost.token_bytes for cost in costs),
                state_bytes=sum(cost.fixed_bytes for cost in costs),
                is_packed=False,
            ),
        )

    def note_times(self, timed: TimedSteps) -> None:
        """Keep with the facts what steps took."""
        self._facts = msgspec.structs.replace(self._facts, timed=timed)

    def forward(self, segments: Sequence[Segment]) -> Forward:
        """Append each segment's tokens to its state, one segment after the other."""
        return Forward(logits=tuple(self._run(segment) for segment in segments), streams=())

    def _run(self, segment: Segment) -> mx.array | None:
        state, tokens = segment.state, segment.token_ids
        assert isinstance(state, ZooState)
        if segment.rows == "all":
            return self._run_steps(state, tokens)
        before = tokens if segment.rows == "none" else tokens[:-1]
        if before:
            # Its logits are dropped unevaluated: the output head over a whole prompt can cost more than the layers.
            self._model(mx.array([before]), cache=state.caches)
        last = None if segment.rows == "none" else self._run_token(state, tokens[-1])
        state.advance(len(tokens))
        return last

    def _run_steps(self, state: ZooState, tokens: tuple[int, ...]) -> mx.array:
        """Token by token, with a way back to each: mlx-lm's recurrent caches can be cut back in no other."""
        steps: list[ZooCheckpoint] = []
        logits: list[mx.array] = []
        for token in tokens:
            steps.append(state.checkpoint())
            logits.append(self._run_token(state, token))
            state.advance(1)
        state.record_steps(steps)
        return mx.concatenate(logits)

    def _run_token(self, state: ZooState, token: int) -> mx.array:
        return self._model(mx.array([[token]]), cache=state.caches)[:, -1, :].astype(mx.float32)


def load_zoo(folder: Path, raw: dict[str, Any], dtype: mx.Dtype | None, facts: ModelFacts) -> ServedZoo:
    """Load a folder by mlx-lm. `raw` is its parsed config.json; dtype None keeps the checkpoint's own.

    `facts` holds what the folder's name and place say; the rest is filled in here.

    Raises:
        ModelUnsupported: mlx-lm has no such architecture.
        CheckpointInvalid: it has, but the configuration or the tensors do not fit it.
    """
    if not is_known(facts.architecture):
        raise ModelUnsupported(f"{folder} is of the model_type {facts.architecture!r}, which nothing here can run.")
    try:
        model, _ = load_lm_model(folder, lazy=True)
        if dtype is not None:
            model.set_dtype(dtype)
        mx.eval(model.parameters())
        parameters, vocabulary = int(get_total_parameters(model)), _find_vocabulary(raw)
    except FAULTS as fault:
        raise CheckpointInvalid(f"{folder} cannot be loaded as {facts.architecture}: {one_line(fault)}.") from None
    return ServedZoo(model, _complete(facts, raw, model, parameters, vocabulary))


def is_known(architecture: str) -> bool:
    """Whether mlx-lm has a module for this `model_type`."""
    name = MODEL_REMAPPING.get(architecture, architecture)
    if not name.isidentifier() or importlib.util.find_spec(f"mlx_lm.models.{name}") is None:
        return False
    # Some modules there are no architectures but what these share.
    return hasattr(importlib.import_module(f"mlx_lm.models.{name}"), "ModelArgs")


def read_context_limit(raw: Mapping[str, Any]) -> int:
    """How many tokens a sequence may have, by config.json."""
    nested = raw.get("text_config")
    for fields in (raw, nested if isinstance(nested, dict) else {}):
        for name in CONTEXT_FIELDS:
            value = fields.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return CONTEXT_UNSTATED_TOKENS


def _complete(facts: ModelFacts, raw: dict[str, Any], model: Any, parameters: int, vocabulary: int) -> ModelFacts:
    arrays = name_arrays(model).values()
    floating = [array.dtype for array in arrays if mx.issubdtype(array.dtype, mx.floating)]
    return msgspec.structs.replace(
        facts,
        vocab_size=vocabulary,
        context_limit_tokens=read_context_limit(raw),
        dtype=name_dtype(max(set(floating), key=floating.count)) if floating else "",
        parameters=parameters,
        weights_bytes=count_bytes(model),
    )


def _find_vocabulary(raw: Mapping[str, Any]) -> int:
    nested = raw.get("text_config")
    for fields in (raw, nested if isinstance(nested, dict) else {}):
        value = fields.get("vocab_size")
        if isinstance(value, int) and value > 0:
            return value
    raise ValueError("config.json has no vocab_size")


def one_line(fault: BaseException) -> str:
    """What a foreign error says, as one line that fits into a sentence."""
    text = " ".join(str(fault).split()).rstrip(".")
    return text if len(text) <= SHOWN_FAULT else f"{text[:SHOWN_FAULT]}…"


def _trims_exactly(cache: Any) -> bool:
    """Whether trimming leaves no trace: rows by position do so, rings and recurrent states do not."""
    if isinstance(cache, CacheList):
        return all(_trims_exactly(part) for part in cache.caches)
    return type(cache) in (KVCache, QuantizedKVCache)


def _held_arrays(cache: Any) -> list[mx.array]:
    parts = cache.caches if isinstance(cache, CacheList) else ()
    own = [leaf for _, leaf in tree_flatten([v for v in vars(cache).values() if v is not parts])]
    arrays = [leaf for leaf in own if isinstance(leaf, mx.array)]
    return arrays + [array for part in parts for array in _held_arrays(part)]
