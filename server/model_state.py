"""What is known of the served model while it loads, once it is ready, and when it could not be loaded.

Lives on the server loop; touches no array. The engine loads the weights, a text thread the tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from server.admission.wording import build_loading_refusal, explain_shortage
from server.errors import EngineDead, HomebaseError
from server.events import ModelStateChanged
from server.memory_plan import MemoryPlan
from server.models.cache import ModelFacts
from server.policy import Policy
from server.snapshot import FetchView, ModelView
from server.text.tokenizer import TextCodec

T = TypeVar("T")

LOADING = "reading weights and tokenizer"
NONE = "no local model: [model] path is empty"
LOOKING = "looking for it in the cache of Hugging Face, and there"
TOLD_PARTS = 10
"""In how many parts the way of a fetch is told in the log; what is on the screen moves all the time."""


class ModelState:
    """One model's way from a name to being served."""

    def __init__(
        self,
        name: str,
        path: str,
        embedded: bool,
        publish: Callable[[ModelStateChanged], object],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._publish, self._clock, self._wall = publish, clock, wall
        self._began_s = clock()
        self._codec: TextCodec | None = None
        self._has_mtp = False
        self._facts: ModelFacts | None = None
        self._failure: str | None = None
        self._told_parts = 0
        self._view = ModelView(
            id=name,
            path=path,
            state="loading" if path else "none",
            detail=LOADING if path else NONE,
            architecture="",
            dtype="",
            quantization="",
            parameters=0,
            weights_bytes=0,
            context_limit_tokens=0,
            effective_context_limit_tokens=0,
            device="",
            mtp="",
            embedded=embedded,
            load_s=None,
        )
        self._announce()

    @property
    def failure(self) -> str | None:
        """Why it is not served and never will be; None otherwise."""
        return self._failure

    @property
    def is_loading(self) -> bool:
        """True until it is ready or has failed."""
        return self._view.state == "loading"

    def look(self) -> None:
        """It is not a folder here, and is looked for."""
        self._view, self._told_parts = msgspec.structs.replace(self._view, detail=LOOKING), 0

    def fetching(self, progress: FetchView) -> bool:
        """It is being fetched, and so far; announced in tenths. True when it was."""
        self._view = msgspec.structs.replace(self._view, detail=describe_fetch(progress), fetch=progress)
        part = 1 + progress.done_bytes * TOLD_PARTS // max(1, progress.total_bytes)
        if part <= self._told_parts:
            return False
        self._told_parts = part
        self._announce()
        return True

    def found(self, folder: Path) -> None:
        """It is in this folder now, and its weights are read."""
        self._view = msgspec.structs.replace(self._view, path=str(folder), detail=LOADING, fetch=None)
        self._began_s = self._clock()
        self._announce()

    def ready(self, facts: ModelFacts, codec: TextCodec, device: str) -> None:
        """It is in memory and can be asked."""
        self._codec, self._has_mtp, self._facts = codec, facts.has_mtp, facts
        self._view = msgspec.structs.replace(
            self._view,
            state="ready",
            detail="",
            architecture=facts.architecture,
            dtype=facts.dtype,
            quantization=facts.quantization,
            parameters=facts.parameters,
            weights_bytes=facts.weights_bytes,
            context_limit_tokens=facts.context_limit_tokens,
            device=device,
            mtp="" if facts.has_mtp else f"none: {facts.no_mtp_because}",
            embedded=facts.embedded,
            load_s=self._clock() - self._began_s,
            bandwidth_bps=facts.bandwidth_bps or None,
        )
        self._announce()

    def fail(self, reason: str) -> None:
        """It cannot be served; the first reason counts."""
        if self._failure is not None:
            return
        self._failure = reason
        self._view = msgspec.structs.replace(self._view, state="failed", detail=reason, fetch=None)
        self._announce()

    def text(self) -> TextCodec:
        """The tokenizer. Raises Refusal (`model_loading`) before it is there and EngineDead when it never will be.

        Where no model is served there is none, and nobody gets so far.
        """
        return self._give(self._codec)

    def read_facts(self) -> ModelFacts:
        """What was loaded. Raises as `text` does."""
        return self._give(self._facts)

    def _give(self, loaded: T | None) -> T:
        if self._failure is not None:
            raise EngineDead(self._failure)
        if loaded is None:
            raise build_loading_refusal()
        return loaded

    def view(self, policy: Policy) -> ModelView:
        """What there is to show, with the context limit that the policy leaves of it."""
        effective, set_by = self._view.context_limit_tokens, ""
        plan = self.plan_memory(policy)
        for key, most in (
            ("policy.max_context_tokens", policy.policy.max_context_tokens or None),
            ("engine.memory_budget_gib", plan.most_tokens),
        ):
            if most is not None and most < effective:
                effective, set_by = most, key
        return msgspec.structs.replace(
            self._view,
            effective_context_limit_tokens=effective,
            context_limit_set_by=set_by,
            mtp=describe_mtp(policy.engine.mtp) if self._has_mtp else self._view.mtp,
            detail=explain_shortage(plan) or self._view.detail,
        )

    def plan_memory(self, policy: Policy) -> MemoryPlan:
        """What the policy's memory budget leaves for streams; without limits until it is loaded."""
        if self._facts is None:
            return MemoryPlan()
        return self._facts.plan_memory(policy.engine.memory_budget_gib)

    def _announce(self) -> None:
        if self._view.state == "none":
            return
        self._publish(ModelStateChanged(time_s=self._wall(), state=self._view.state, detail=self._view.detail))


def describe_fetch(progress: FetchView) -> str:
    """How far a fetch is, in words."""
    size, unit = (1e9, "GB") if progress.total_bytes >= 1e9 else (1e6, "MB")
    words = f"fetching: {progress.done_bytes / size:.1f} of {progress.total_bytes / size:.1f} {unit}"
    if progress.rate_bps:
        words += f", {progress.rate_bps / 1e6:.1f} MB/s"
    if progress.eta_s is not None:
        minutes = progress.eta_s / 60
        words += f", {minutes:.0f} min left" if minutes >= 1.5 else f", {progress.eta_s:.0f} s left"
    return words


def explain_load_fault(error: BaseException) -> str:
    """Why a model did not load, in a sentence; what was not foreseen is named by its kind."""
    if isinstance(error, HomebaseError):
        return error.message
    return f"The model cannot be loaded: {type(error).__name__}: {error}."


def describe_mtp(setting: str | int) -> str:
    """What `[engine] mtp` does with a checkpoint that has a head."""
    if setting == "off":
        return "off: [engine] mtp is off"
    return (
        "auto: as deep as pays, stream by stream" if setting == "auto" else f"{setting} deep: always, whatever it pays"
    )
