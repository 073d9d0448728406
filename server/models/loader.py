"""From the `[model] path` of the policy to a model that the engine can run. Local folders only: `fetch` fetches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from server.errors import ModelUnsupported
from server.machine import read_memory_limit_bytes
from server.memory_plan import MACHINE_SHARE
from server.models.cache import ModelFacts, ServedModel
from server.models.fingerprint import fingerprint_weights
from server.models.flash_next.checkpoint import load_flash_next
from server.models.flash_next.config import DRAFTER_TYPES, MODEL_TYPES
from server.models.flash_next.served import ServedFlashNext, measure_reads, measure_stream
from server.models.flash_next.sources import check_drafter
from server.models.folder import EMBEDDED, model_name, read_config, resolve_model_folder
from server.models.probe import measure_bandwidth, time_steps
from server.models.scheduling import OneCore, schedule_as_batch
from server.models.tensor_files import scan_checkpoint
from server.models.weights import name_dtype
from server.models.zoo import FAULTS, ServedZoo, load_zoo, one_line

UNUSED_HEAD = "the checkpoint's multi-token-prediction head is of an architecture that is decoded plainly here"
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def load_model(path: str, dtype: str, folder: Path | None = None, drafter: Path | None = None) -> ServedModel:
    """Load the checkpoint at `path`, in `dtype` or, with "auto", in what suits the device.

    `folder` is where it lies, when `path` is a name that it was fetched by. `drafter` is a folder or file with a
    drafting head for it.

    Weights are evaluated on the calling thread, which must be the one that will run the model; on a CPU it is
    scheduled as a batch from here on.

    Raises:
        ModelNotFound: there is no checkpoint.
        CheckpointInvalid: its configuration or tensors are wrong, missing or unreadable.
        ModelUnsupported: an architecture, layout or packing that nothing here can run.
    """
    folder = folder or resolve_model_folder(path)
    raw = read_config(folder)
    tensors = scan_checkpoint(folder)
    kept = choose_dtype(dtype)
    core = OneCore(hold_s=0.0)
    if mx.default_device() == mx.cpu:
        schedule_as_batch()
    facts = _begin_facts(path, folder, raw, fingerprint_weights(folder, drafter))
    if facts.architecture in MODEL_TYPES:
        model = _load_flash_next(folder, raw, kept, facts, drafter and check_drafter(drafter))
    else:
        _refuse_drafters(folder, facts, drafter)
        if any(name.startswith("mtp.") or ".mtp." in name for name in tensors):
            facts = msgspec.structs.replace(facts, no_mtp_because=UNUSED_HEAD)
        model = load_zoo(folder, raw, kept, facts)
    _rehearse(model, core)
    return model


def _refuse_drafters(folder: Path, facts: ModelFacts, drafter: Path | None) -> None:
    if facts.architecture in DRAFTER_TYPES:
        raise ModelUnsupported(
            f"{folder} holds a drafting head alone: set [model] path to the model that it drafts for, and [model] "
            "draft_path to this."
        )
    if drafter is not None:
        raise ModelUnsupported(
            f"[model] draft_path is set, but {facts.id} is of the model_type {facts.architecture!r}, which cannot "
            f"draft here; only {', '.join(sorted(MODEL_TYPES))} can. Leave draft_path empty."
        )


def _load_flash_next(
    folder: Path, raw: dict[str, Any], dtype: mx.Dtype | None, facts: ModelFacts, drafter: Path | None
) -> ServedFlashNext:
    loaded = load_flash_next(folder, raw, dtype, drafter)
    cost = measure_stream(loaded.model)
    complete = msgspec.structs.replace(
        facts,
        vocab_size=loaded.config.vocab_size,
        context_limit_tokens=loaded.config.max_position_embeddings,
        dtype=name_dtype(loaded.dtype),
        parameters=loaded.parameters,
        weights_bytes=loaded.weights_bytes,
        has_mtp=loaded.has_mtp,
        stream_bytes=cost.fixed_bytes,
        token_bytes=cost.token_bytes,
        reads=measure_reads(loaded.model),
    )
    return ServedFlashNext(loaded.model, complete)


def _rehearse(model: ServedFlashNext | ServedZoo, core: OneCore) -> None:
    """Find what this device cannot do now, and not when a client waits; and how long it takes for what it can."""
    try:
        model.rehearse()
        core.settle()  # as the engine runs its steps
        try:
            model.note_times(time_steps(model, model.build_far if isinstance(model, ServedFlashNext) else None))
        finally:
            core.settle()
    except FAULTS as fault:
        facts = model.facts
        raise ModelUnsupported(
            f"{facts.path} loads, but cannot be run on this device in {facts.dtype}: {one_line(fault)}. "
            '[model] dtype = "auto" picks one that can.'
        ) from None


def choose_dtype(dtype: str) -> mx.Dtype | None:
    """The dtype to cast weights to; None keeps the checkpoint's own.

    Without a GPU "auto" means float32: the CPU backend multiplies gathered matrices (experts) in no other
    (MLX 0.32.4).

    Raises:
        ModelUnsupported: a name that is not a dtype to run in.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ModelUnsupported(f"[model] dtype is {dtype!r}; it can be auto, {', '.join(DTYPES)}.")
    if dtype == "auto":
        return mx.float32 if mx.default_device() == mx.cpu else None
    return DTYPES[dtype]


def describe_quantization(raw: dict[str, Any]) -> str:
    """How the weights are packed, in words, by config.json: "none", or bits, mode and group size."""
    settings = raw.get("quantization") or raw.get("quantization_config")
    if not isinstance(settings, dict):
        return "none"
    if "bits" not in settings:
        return str(settings.get("quant_method", "unknown"))
    return f"{settings['bits']}-bit {settings.get('mode', 'affine')}, groups of {settings.get('group_size', 64)}"


def _begin_facts(path: str, folder: Path, raw: dict[str, Any], fingerprint: str) -> ModelFacts:
    """Facts that need no weights; the rest is filled in by those who load them."""
    return ModelFacts(
        id=model_name(path),
        path=str(folder),
        architecture=raw["model_type"],
        vocab_size=0,
        context_limit_tokens=0,
        dtype="",
        quantization=describe_quantization(raw),
        parameters=0,
        weights_bytes=0,
        has_mtp=False,
        embedded=path == EMBEDDED,
        device_bytes=_find_device_bytes(),
        fingerprint=fingerprint,
        bandwidth_bps=measure_bandwidth(),
    )


def _find_device_bytes() -> int:
    """What a program should hold at most: the device's own word, or a share of the machine's memory."""
    # MLX names what a GPU should not exceed; for a CPU it names nothing.
    named = mx.device_info().get("max_recommended_working_set_size")
    return int(named) if named else int(MACHINE_SHARE * read_memory_limit_bytes())


def describe_device() -> str:
    """What arrays are computed on, in a word: `cpu` or `gpu`."""
    return mx.default_device().type.name
