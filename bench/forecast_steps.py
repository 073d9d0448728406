"""Streams through the engine's steps, forecast before each run, everything in seconds of the processor.

A machine that others use gives a process half of its time in one second and all of it in the next; its processor's
clock stands still meanwhile, for the model's steps, the cost model and the forecast alike.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from server.engine import step as engine_step
from server.engine.request import EngineRequest, Sampling
from server.engine.step import StepRunner
from server.events import StepDone
from server.forecast.measured import MeasuredSteps
from server.forecast.prior import Physics, list_depths
from server.forecast.rates import Forecast, StreamLoad, forecast_rates
from server.models import probe
from server.models.folder import resolve_model_folder
from server.models.loader import load_model
from server.models.scheduling import OneCore
from server.policy import EnginePolicy
from server.text.tokenizer import load_text_codec

from load import ask_for, build_prompt

POLICY = EnginePolicy()


class ProcessorRuns:
    """One model's steps, run by hand on this thread."""

    def __init__(self, model: str) -> None:
        clock: Any = SimpleNamespace(monotonic=time.process_time, perf_counter=time.process_time)
        probe.time = engine_step.time = clock
        self._core = OneCore()
        folder = resolve_model_folder(model)
        self._model, self._codec = load_model(model, "auto", folder), load_text_codec(folder)
        self._runner, self._record = StepRunner(self._model), MeasuredSteps()
        self._asked = 0

    def forecast(self, streams: int, context_tokens: int) -> Forecast:
        """What is to be expected, by all that has run."""
        facts = self._model.facts
        physics = Physics(facts.reads, facts.bandwidth_bps, facts.timed, list_depths(POLICY.mtp, facts.has_mtp))
        loads = [StreamLoad(context_tokens)] * streams
        return forecast_rates(physics, self._record.points(time.process_time()), loads)

    def measure(self, streams: int, prompt_tokens: int, max_tokens: int, seed: int) -> float | None:
        """Tokens per second of a stream while all decode; None when they never did."""
        for index in range(streams):
            self._asked += 1
            content = build_prompt(ask_for(prompt_tokens), seed + index)
            prompt = self._codec.encode_chat([{"role": "user", "content": content}]).token_ids
            sampling = Sampling(temperature=0)
            self._runner.add(EngineRequest(f"r{self._asked}", tuple(prompt), max_tokens, sampling, frozenset()))
        seconds, tokens = 0.0, 0
        while not self._runner.idle:
            self._core.settle()
            began_s = time.process_time()
            events = self._runner.run_step(POLICY)
            done = next(event for event in events if isinstance(event, StepDone))
            self._record.add(done)
            if done.decoding == streams and not done.prefill_tokens:
                seconds, tokens = seconds + time.process_time() - began_s, tokens + done.decode_tokens
        return tokens / seconds / streams if tokens else None
