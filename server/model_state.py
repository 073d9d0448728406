"""What is known of the served model while it loads, once it is ready, and when it could not be loaded.

Lives on the server loop; touches no array. The engine loads the weights, a text thread the tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from server.admission.wording import build_loading_refusal
from server.errors import EngineDead, HomebaseError
from server.events import ModelStateChanged
from server.models.cache import ModelFacts
from server.policy import Policy
from server.snapshot import ModelView
from server.text.tokenizer import TextCodec

LOADING = "reading weights and tokenizer"


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
        self._failure: str | None = None
        self._view = ModelView(
            id=name,
            path=path,
            state="loading",
            detail=LOADING,
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

    def ready(self, facts: ModelFacts, codec: TextCodec, device: str) -> None:
        """It is in memory and can be asked."""
        self._codec, self._has_mtp = codec, facts.has_mtp
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
            mtp="" if facts.has_mtp else "none: the checkpoint has no multi-token-prediction head",
            embedded=facts.embedded,
            load_s=self._clock() - self._began_s,
        )
        self._announce()

    def fail(self, reason: str) -> None:
        """It cannot be served; the first reason counts."""
        if self._failure is not None:
            return
        self._failure = reason
        self._view = msgspec.structs.replace(self._view, state="failed", detail=reason)
        self._announce()

    def text(self) -> TextCodec:
        """The tokenizer. Raises Refusal (`model_loading`) before it is there and EngineDead when it never will be."""
        if self._failure is not None:
            raise EngineDead(self._failure)
        if self._codec is None:
            raise build_loading_refusal()
        return self._codec

    def view(self, policy: Policy) -> ModelView:
        """What there is to show, with the context limit that the policy leaves of it."""
        own, allowed = self._view.context_limit_tokens, policy.policy.max_context_tokens
        effective = min(own, allowed) if own and allowed else own
        mtp = self._view.mtp
        if self._has_mtp:
            mtp = describe_mtp(policy.engine.mtp)
        return msgspec.structs.replace(self._view, effective_context_limit_tokens=effective, mtp=mtp)

    def _announce(self) -> None:
        self._publish(ModelStateChanged(time_s=self._wall(), state=self._view.state, detail=self._view.detail))


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
