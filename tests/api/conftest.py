"""A whole API over a scripted engine: real app, admission, dispatcher and telemetry; only tokens are made up."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mlx_lm.tool_parsers import qwen3_coder
from quart import Quart
from quart.typing import TestClientProtocol
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from server import http_server
from server.admission.cascade import Cascade, list_elsewhere
from server.admission.lineage import Lineage
from server.admission.slots import Admission
from server.api.app import build_app
from server.api.operator.controls import Controls
from server.api.services import Services, forecast_nothing
from server.engine.dispatch import Dispatcher
from server.engine.request import EngineRequest
from server.errors import EngineDead, InvalidRequest, ParentGone, StreamStopped
from server.events import (
    EngineDied,
    EngineEvent,
    EventRing,
    Outcome,
    PrefillAdvanced,
    Refused,
    SequenceEnded,
    StreamEnded,
    TokenLogprob,
    TokensEmitted,
)
from server.http_server import serve_http
from server.metrics.observers import Observers
from server.metrics.tally import Tally
from server.policy import LimitValue, Policy, apply_changes, validate_policy
from server.policy_store import PolicyStore
from server.snapshot import ModelView, PolicyView, ServerState, Snapshot, StreamView
from server.telemetry import ServerFacts, Telemetry
from server.text.detokenizer import ByteDetokenizer, Detokenizer
from server.text.guide import GuideBuilder
from server.text.markup import NO_MARKUP, Markers, Markup
from server.text.thinking import plan_thinking
from server.text.tokenizer import EncodedPrompt, TextCodec, check_chars
from server.text.tools import Tool
from server.upstreams.upstreams import Upstreams

STOP_ID = 256
LIMIT = 4096
CHAT = "/v1/chat/completions"
ENVIRONMENT: dict[str, str] = {}
"""In which upstreams' keys are looked up."""


def build_byte_tokenizer() -> Tokenizer:
    """One token per byte, and the end, as the library knows them."""
    tokenizer = Tokenizer(BPE({spelled: byte for byte, spelled in enumerate(_spell_bytes())}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def _spell_bytes() -> list[str]:
    """The letters by which byte-level vocabularies write bytes: themselves where they are visible."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]


class ByteCodec(TextCodec):
    """One token per byte; 256 ends an answer. Two messages or ten, the prompt is their text.

    `enable_thinking` opens a thought in the prompt where the codec has thoughts, as Qwen's templates do.
    """

    def __init__(self) -> None:
        self.stop_ids = frozenset({STOP_ID})
        self.vocab_size = 257
        self.seen: list[list[Mapping[str, Any]]] = []
        self.offered: list[list[str]] = []
        """The names of the tools that each prompt shows."""
        self.switches: list[dict[str, Any]] = []
        """What each prompt's template was handed."""
        self.markup = NO_MARKUP
        self.guides = GuideBuilder(build_byte_tokenizer(), self.vocab_size, self.stop_ids)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        limit_tokens: int | None = None,
        *,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
        limit_chars: int | None = None,
    ) -> EncodedPrompt:
        self.seen.append(list(messages))
        self.offered.append([tool.name for tool in tools])
        self.switches.append(dict(template_kwargs or {}))
        text = "".join(str(message["content"]) for message in messages)
        check_chars(text, limit_chars, "messages")
        if "template, refuse" in text:
            raise InvalidRequest("The model's chat template does not take these messages: no", param="messages")
        opens_thought = self.markup.think is not None and (template_kwargs or {}).get("enable_thinking") is True
        return EncodedPrompt(tuple(text.encode()), opens_thought)

    def encode_text(
        self, text: str, limit_tokens: int | None = None, *, limit_chars: int | None = None
    ) -> tuple[int, ...]:
        check_chars(text, limit_chars, "prompt")
        return tuple(text.encode())

    def _decode(self, ids: list[int]) -> str:
        return b"".join(self.spell(token) for token in ids).decode("utf-8", "replace")

    def plan_thinking(self, effort: str) -> dict[str, Any]:
        return plan_thinking(effort, "")

    def _encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return list(text.encode())

    def find_boundaries(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(place for place, token in enumerate(ids) if token == ord(">"))

    def spell(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<end>"

    def build_detokenizer(self) -> Detokenizer:
        return ByteDetokenizer([bytes([n]) for n in range(256)] + [b""], self.stop_ids)


Script = Callable[["FakeEngine", EngineRequest], None]


class FakeEngine:
    """Takes requests and does nothing until it is told to; an ended sequence leaves at the next turn of the loop."""

    def __init__(self) -> None:
        self.requests: dict[str, EngineRequest] = {}
        self.open: dict[str, EngineRequest] = {}
        self.cancelled: list[str] = []
        self.script: Script | None = None
        self.dead: str | None = None
        self.dispatcher: Dispatcher | None = None

    def submit(self, request: EngineRequest) -> None:
        if self.dead:
            raise EngineDead(self.dead)
        self.requests[request.id] = self.open[request.id] = request
        if self.script:
            asyncio.get_running_loop().call_soon(self.script, self, request)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        asyncio.get_running_loop().call_soon(self.end, request_id, "cancelled")

    def deliver(self, *events: EngineEvent) -> None:
        assert self.dispatcher is not None
        self.dispatcher.receive(events)

    def prefill(self, request_id: str, done: int, chunk: int) -> None:
        self.deliver(PrefillAdvanced(request_id, done, chunk, 0.01))

    def say(self, request_id: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        asked = self.requests[request_id].top_logprobs
        scores = () if asked is None else tuple(self._score(token_id, asked) for token_id in data)
        self.deliver(TokensEmitted(request_id, tuple(data), asyncio.get_running_loop().time(), logprobs=scores))

    @staticmethod
    def _score(token_id: int, top: int) -> TokenLogprob:
        """Each token is its own best, the end the next best and impossible; then nothing more."""
        return TokenLogprob(-token_id / 1000, ((token_id, -token_id / 1000), (STOP_ID, -math.inf))[:top])

    def end(self, request_id: str, outcome: Outcome, error: str | None = None) -> None:
        if self.open.pop(request_id, None) is not None:
            self.deliver(SequenceEnded(request_id, outcome, asyncio.get_running_loop().time(), error))

    def die(self, reason: str) -> None:
        self.dead = reason
        self.open.clear()
        self.deliver(EngineDied(reason))

    @property
    def only(self) -> str:
        """The id of the one sequence that is open."""
        (request_id,) = self.open
        return request_id


def speak(*pieces: str | bytes, outcome: Outcome = "stop") -> Script:
    """A script: prefill in one chunk, then the pieces one token batch each, then the end."""

    def run(engine: FakeEngine, request: EngineRequest) -> None:
        engine.prefill(request.id, len(request.prompt_ids), len(request.prompt_ids))
        for piece in pieces:
            engine.say(request.id, piece)
        if outcome == "stop":
            asked = request.top_logprobs
            scores = () if asked is None else (TokenLogprob(-0.256),)
            now_s = asyncio.get_running_loop().time()
            engine.deliver(TokensEmitted(request.id, (STOP_ID,), now_s, logprobs=scores))
        engine.end(request.id, outcome)

    return run


@dataclass
class Rig:
    """The API and everything around it, open to inspection."""

    app: Quart
    engine: FakeEngine
    admission: Admission
    telemetry: Telemetry
    ring: EventRing
    codec: ByteCodec
    upstreams: Upstreams
    lineage: Lineage = field(default_factory=Lineage)
    policy: Policy = field(default_factory=Policy)
    model: ModelView | None = None
    state: ServerState = "serving"
    engine_alive: bool = True
    store: PolicyStore = field(default_factory=lambda: PolicyStore(Path("homebase.toml"), b""))
    """Has read no file; what the API goes by is `policy`."""
    done: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """What an operator did, and who it was."""
    is_over: bool = False
    what_if: Callable[..., Any] = forecast_nothing

    @property
    def client(self) -> TestClientProtocol:
        return self.app.test_client()

    def set_policy(self, **changes: LimitValue) -> None:
        """Dotted keys with `__` for the dot."""
        document = msgspec.to_builtins(self.policy)
        dotted = {name.replace("__", "."): value for name, value in changes.items()}
        self.policy = validate_policy(apply_changes(document, dotted))

    def read_model(self) -> ModelView:
        assert self.model is not None
        asked = self.policy.policy.max_context_tokens
        effective = min(asked or self.model.context_limit_tokens, self.model.context_limit_tokens)
        return msgspec.structs.replace(self.model, effective_context_limit_tokens=effective)

    def streams(self) -> tuple[StreamView, ...]:
        return self.telemetry.streams()

    def refusals(self) -> list[Refused]:
        return [entry.notice for entry in self.ring.after(0) if isinstance(entry.notice, Refused)]

    def ends(self) -> list[StreamEnded]:
        return [entry.notice for entry in self.ring.after(0) if isinstance(entry.notice, StreamEnded)]

    def drain(self, by: str) -> None:
        self.done.append(("drain", by))
        self.admission.drain()

    def resume(self, by: str) -> None:
        self.done.append(("resume", by))
        self.admission.resume()

    def stop_stream(self, stream_id: str, by: str = "") -> bool:
        self.done.append(("stop", by))
        dispatcher = self.engine.dispatcher
        assert dispatcher is not None
        if self.admission.cancel_waiting(stream_id, StreamStopped("Stopped while it waited.")):
            return True
        if stream_id not in dispatcher.open_ids:
            return self.upstreams.stop(stream_id, StreamStopped("This stream was stopped at the server."))
        dispatcher.cancel(stream_id)
        return True

    def build_snapshot(self) -> Snapshot:
        return self.telemetry.build_snapshot(
            ServerFacts(
                state=self.state,
                host="127.0.0.1",
                port=11234,
                version="0.1.0",
                in_flight=self.admission.in_flight,
                max_in_flight=self.policy.policy.max_in_flight,
                peak_in_flight=self.admission.peak_in_flight,
                admitted_total=self.admission.admitted_total,
                policy=PolicyView("homebase.toml", True, "", None, {}),
                model=self.read_model(),
                engine_alive=self.engine_alive,
                engine_error=self.engine.dead,
                resident_bytes=1,
                machine_bytes=2,
                line=self.admission.line_places(),
                upstreams=self.upstreams.views(),
            )
        )

    async def post(
        self, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None, path: str = CHAT
    ) -> Any:
        """Send a request, for a chat unless said otherwise, and read the whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        return await self.client.post(path, data=data, headers=sent)

    async def until(self, claim: Callable[[], object], within_s: float = 5.0) -> None:
        """Wait until a claim holds."""
        end_s = asyncio.get_running_loop().time() + within_s
        while not claim():
            assert asyncio.get_running_loop().time() < end_s, "it never came to hold"
            await asyncio.sleep(0.001)

    async def settle(self, turns: int = 20) -> None:
        """Let everything that is ready run."""
        for _ in range(turns):
            await asyncio.sleep(0)


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "nano", "messages": [{"role": "user", "content": text}], **fields}


def build_model_view(state: Any = "ready") -> ModelView:
    return ModelView(
        id="org/nano",
        path="/models/nano",
        state=state,
        detail="",
        architecture="fake",
        dtype="float32",
        quantization="",
        parameters=1,
        weights_bytes=4,
        context_limit_tokens=LIMIT,
        effective_context_limit_tokens=LIMIT,
        device="cpu",
        mtp="off",
        embedded=True,
        load_s=0.1,
    )


def build_rig() -> Rig:
    engine, ring, codec = FakeEngine(), EventRing(5000), ByteCodec()
    telemetry = Telemetry(ring)
    admission = Admission(telemetry.streams, read_policy=lambda: rig.policy.policy)
    tally = Tally()
    cascade = Cascade(
        lambda: (*admission.places(), *list_elsewhere(telemetry.streams())),
        lambda request_id: upstreams.stop(request_id, ParentGone()) or dispatcher.end(request_id, ParentGone()),
        lambda: rig.policy.policy.subagents.cancel_on_turn_cancel,
        lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s / 20, call),
    )
    observers = Observers(telemetry, tally, on_end=cascade.ended)
    dispatcher = engine.dispatcher = Dispatcher(engine, observers.fold)
    upstreams = Upstreams(lambda: rig.policy.upstreams, ENVIRONMENT)
    rig = Rig(Quart("unused"), engine, admission, telemetry, ring, codec, upstreams, model=build_model_view())
    services = Services(
        read_policy=lambda: rig.policy,
        read_model=lambda: rig.read_model(),
        text=lambda: rig.codec,
        admission=admission,
        lineage=rig.lineage,
        dispatcher=lambda: dispatcher,
        telemetry=observers,
        upstreams=rig.upstreams,
        tally=tally,
        build_snapshot=rig.build_snapshot,
        stop_stream=rig.stop_stream,
        controls=Controls(
            store=lambda: rig.store,
            ring=ring,
            drain=rig.drain,
            resume=rig.resume,
            is_over=lambda: rig.is_over,
        ),
        came=cascade.came,
        what_if=lambda policy, situation: rig.what_if(policy, situation),
    )
    rig.app = build_app(services)
    return rig


@pytest.fixture
def rig() -> Rig:
    return build_rig()


@pytest.fixture
def markup(rig: Rig) -> None:
    """The codec's answers have thoughts and calls in them, as Qwen's have."""
    think, call = Markers("<think>", "</think>"), Markers("<tool_call>", "</tool_call>")
    rig.codec.markup = Markup(think, call, "qwen_xml", qwen3_coder.parse_tool_call)


@pytest.fixture(name="speak")
def speak_fixture() -> Callable[..., Script]:
    return speak


@pytest.fixture(name="chat_body")
def chat_body_fixture() -> Callable[..., dict[str, Any]]:
    return chat_body


@pytest.fixture
async def port(rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The application at a free port of the real server; its log must stay free of errors, whatever clients do."""
    monkeypatch.setattr(http_server, "GRACEFUL_S", 0.2)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    number: int = listener.getsockname()[1]
    over = asyncio.Event()
    server = asyncio.create_task(serve_http(rig.app, listener, over.wait))
    yield number
    over.set()
    await asyncio.wait_for(server, 10)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
