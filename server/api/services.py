"""What the HTTP surface needs of the rest of the server, handed to it by the composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from server.admission.lineage import Lineage
from server.admission.place import Place
from server.admission.slots import Admission
from server.api.operator.controls import Controls
from server.engine.request import EngineRequest
from server.errors import EngineDead
from server.events import EngineEvent, Outcome, Refused
from server.forecast.what_if import Situation, WhatIf
from server.metrics.tally import Tally
from server.policy import Policy
from server.snapshot import ModelView, Snapshot
from server.telemetry import StreamIdentity
from server.text.tokenizer import TextCodec
from server.upstreams.upstreams import Upstreams


class TokenStream(Protocol):
    """One request's engine events, read by one task; `server.engine.dispatch.Generation` is one."""

    async def read(self, take: Callable[[EngineEvent], bool]) -> None:
        """Give `take` each event in order, until it says True or SequenceEnded was given.

        Raises what `take` raises, EngineDead and SequenceFailed.
        """
        ...

    def cancel(self) -> None:
        """End it at the next step boundary; calling it again, or after the end, changes nothing."""
        ...


class StreamDispatcher(Protocol):
    """Takes requests to the engine; `server.engine.dispatch.Dispatcher` is one."""

    def submit(self, request: EngineRequest, on_left: Callable[[], None]) -> TokenStream:
        """Start generating; `on_left` is called once, when the engine holds nothing of it any more.

        Raises EngineDead, and then never calls `on_left`.
        """
        ...


class StreamObserver(Protocol):
    """Is told of every stream's beginning and end, and of refusals; `server.metrics.observers.Observers` is one."""

    def stream_opened(self, request_id: str, identity: StreamIdentity) -> None:
        """A request was admitted and is with the engine, or with an upstream."""
        ...

    def upstream_said(self, request_id: str, tokens: int) -> None:
        """An upstream's answer has grown by so many tokens."""
        ...

    def upstream_told(
        self, request_id: str, prompt_tokens: int | None, completion_tokens: int | None, cached_tokens: int | None
    ) -> None:
        """What an upstream says that a request has cost."""
        ...

    def stream_waiting(self, request_id: str, identity: StreamIdentity) -> None:
        """A request waits for a slot."""
        ...

    def stream_left(self, request_id: str, outcome: Outcome | None = None, detail: str = "") -> float:
        """It waits no more and never had a slot: it was refused, or ended as told."""
        ...

    def stream_ended(self, request_id: str, outcome: Outcome, detail: str = "") -> None:
        """A stream is over, and how."""
        ...

    def refused(self, refused: Refused) -> None:
        """A request was not admitted."""
        ...


async def forecast_nothing(policy: Policy, situation: Situation) -> WhatIf:
    """Where there is nothing to forecast."""
    raise EngineDead("Nothing is forecast here: there is no engine.")


@dataclass(frozen=True)
class Services:
    """Everything that the routes use. The callables are asked at each request, so that what they give may change."""

    read_policy: Callable[[], Policy]
    """The policy in force."""
    read_model: Callable[[], ModelView]
    """What is served, also while it loads."""
    text: Callable[[], TextCodec]
    """The served model's tokenizer; raises Refusal with code `model_loading` until there is one."""
    admission: Admission
    lineage: Lineage
    dispatcher: Callable[[], StreamDispatcher]
    telemetry: StreamObserver
    upstreams: Upstreams
    tally: Tally
    """Is told by `telemetry`; the routes only read it."""
    controls: Controls
    """What the operator's endpoints act with."""
    build_snapshot: Callable[[], Snapshot]
    stop_stream: Callable[[str, str], bool]
    """Ends one stream; takes its id and by whom, for the log; False when it is already over."""
    came: Callable[[Place], object] = lambda place: None
    """Is told of each request that comes, before it is known whether it is let in."""
    what_if: Callable[[Policy, Situation], Awaitable[WhatIf]] = forecast_nothing
    """What another policy would mean; raises Refusal with code `model_loading` until there is a model."""
