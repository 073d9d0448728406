"""A server without a screen: real clients against it, and that it ends in time with every client told."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from openai import APIStatusError, OpenAI, RateLimitError

if TYPE_CHECKING:
    from tests.flows.conftest import Headless

NO_SCREEN = """
import os
import sys
from console.cli import main

leave = os._exit
os._exit = lambda code: leave(code or 9 * bool({"textual", "rich"} & set(sys.modules)))
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_time_with_open_streams_told(headless: Callable[..., Headless], number: signal.Signals):
    server = headless()
    decoding, prefilling = server.open_stream(), server.open_long_prefill()
    code, seconds = server.end(number)
    assert code == 0
    assert seconds < 6
    assert not prefilling.text
    for stream in (decoding, prefilling):
        assert stream.ended.wait(5)
        assert stream.fault is None
        assert stream.error is not None
        assert "shutting down" in stream.error["message"]
        assert stream.error["code"] == "stream_stopped"
    assert server.is_port_free()
    assert "Traceback" not in server.said
    assert "Exception" not in server.said


def test_an_engine_step_of_a_minute_does_not_hold_up_the_end(headless: Callable[..., Headless]):
    server = headless(blocked=True)
    stream = server.open_stuck_stream()
    code, seconds = server.end(signal.SIGTERM)
    assert code == 0
    assert seconds < 6
    assert stream.ended.wait(5)
    assert stream.error is not None


def test_a_signal_during_the_load_ends_it_in_time(headless: Callable[..., Headless]):
    server = headless(ready=False)
    server.wait_until("it listens", lambda: server.status("/health"), 30)
    code, seconds = server.end(signal.SIGTERM)
    assert code == 0
    assert seconds < 6


def test_a_request_before_the_model_is_there_is_refused_as_loading(headless: Callable[..., Headless]):
    server = headless(ready=False)
    server.wait_until("it listens", lambda: server.status("/health"), 30)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    codes: list[str | None] = []
    while server.status("/ready") != 200:
        try:
            client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "hi"}], max_tokens=1)
        except APIStatusError as error:
            codes.append(error.code)
    assert set(codes) <= {"model_loading"}
    assert codes


def test_models_without_a_cache_folder(headless: Callable[..., Headless]):
    server = headless()
    assert not list((server.folder / "home").rglob("huggingface"))
    assert [model["id"] for model in server.get("/v1/models")["data"]] == [server.snapshot()["model"]["id"]]


def test_it_never_imports_textual_or_rich(headless: Callable[..., Headless]):
    server = headless(launcher=NO_SCREEN)
    stream = server.open_stream(max_tokens=5)
    assert stream.ended.wait(20)
    assert server.end(signal.SIGTERM)[0] == 0, "9: one of them was imported"


def test_a_killed_server_leaves_its_port_free(headless: Callable[..., Headless]):
    server = headless()
    stream = server.open_stream()
    server.end(signal.SIGKILL)
    assert stream.ended.wait(5)
    assert server.is_port_free()


def test_four_chats_at_once_two_run_and_two_are_refused_at_once(headless: Callable[..., Headless]):
    server = headless()
    client = OpenAI(base_url=f"{server.url}/v1", api_key="x")
    barrier, refused, ran = threading.Barrier(4), list[tuple[float, APIStatusError]](), list[str]()

    def chat() -> None:
        barrier.wait()
        began = time.monotonic()
        try:
            stream = client.chat.completions.create(
                model="nano",
                messages=[{"role": "user", "content": "Write a class"}],
                max_tokens=80,
                temperature=0,
                stream=True,
            )
            ran.append("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
        except APIStatusError as error:
            refused.append((time.monotonic() - began, error))

    threads = [threading.Thread(target=chat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ran) == 2
    assert all(ran)
    assert len(refused) == 2
    for seconds, error in refused:
        assert isinstance(error, RateLimitError)
        assert seconds < 3, "the client is not sent into retries"
        assert "2 of 2 in flight" in error.message
    admission = server.snapshot()["admission"]
    assert (admission["peak_in_flight"], admission["refused_total"], admission["admitted_total"]) == (2, 2, 2)


def test_a_limit_changed_in_an_editor_is_in_force_and_flags_are_never_written(headless: Callable[..., Headless]):
    server = headless(config="[policy]\nmax_in_flight = 2  # mine\n")
    server.open_stream()
    server.config.write_text("[policy]\nmax_in_flight = 1  # mine\n")
    server.wait_until("the edit is in force", lambda: server.snapshot()["admission"]["max_in_flight"] == 1)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    with pytest.raises(RateLimitError, match="1 of 1 in flight"):
        client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "hi"}])
    assert server.config.read_text() == "[policy]\nmax_in_flight = 1  # mine\n"
    assert server.snapshot()["policy"]["values"]["server.port"] == server.port
    server.wait_until("both are logged", lambda: "refused [req-" in server.said)
    assert "file edited: policy.max_in_flight 2 -> 1" in server.said


def test_a_file_broken_while_it_runs_is_told_and_changes_nothing(headless: Callable[..., Headless]):
    server = headless(config="[policy]\nmax_in_flight = 2\n")
    server.config.write_text("[policy]\nmax_in_flight = 500\n")
    server.wait_until("it is told", lambda: "homebase.toml:2: policy.max_in_flight: 500 is not allowed" in server.said)
    snapshot = server.snapshot()
    assert "homebase.toml:2" in snapshot["policy"]["problem"]
    assert snapshot["admission"]["max_in_flight"] == 2


def test_a_model_that_cannot_be_loaded_leaves_the_server_up_with_the_reason(
    headless: Callable[..., Headless], tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("broken")
    (folder / "config.json").write_text('{"model_type": "qwen4_exp"}')
    server = headless("--model", str(folder), ready=False)
    server.wait_until("the load has failed", lambda: server.status("/health") == 503, 45)
    snapshot = server.snapshot()
    assert (snapshot["state"], snapshot["model"]["state"]) == ("engine_dead", "failed")
    assert snapshot["model"]["detail"]
    assert server.status("/ready") == 503
    code, seconds = server.end(signal.SIGTERM)
    assert code == 0
    assert seconds < 6
