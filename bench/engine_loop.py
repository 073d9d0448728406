"""The engine by itself, in a process of its own: no HTTP, no text, the same prompts. Answers one line per request.

Reads JSON lines `{"streams": n, "prompt_tokens": n, "max_tokens": n, "seed": n}` from standard input and writes
`{"decode_tps": [..], "ttft_s": [..]}`, measured from the engine's own time stamps.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from pathlib import Path
from typing import Any

from server.engine.engine import Engine
from server.engine.request import EngineRequest, Sampling
from server.events import EngineEvent, SequenceEnded, TokensEmitted
from server.models.loader import load_model, resolve_model_folder
from server.policy import EnginePolicy
from server.text.tokenizer import TextCodec, load_text_codec

from load import build_prompt


def main(path: str) -> None:
    """Load the checkpoint at `path` and answer requests until standard input ends."""
    events: queue.SimpleQueue[tuple[EngineEvent, ...]] = queue.SimpleQueue()
    engine = Engine(lambda: load_model(path, "auto"), events.put, EnginePolicy)
    engine.start().result()
    codec = load_text_codec(Path(resolve_model_folder(path)))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_measure(engine, codec, events, json.loads(line))), flush=True)
    engine.stop(5)


def _measure(
    engine: Engine, codec: TextCodec, events: queue.SimpleQueue[tuple[EngineEvent, ...]], asked: dict[str, Any]
) -> dict[str, Any]:
    requests = [_build_request(codec, asked, index) for index in range(asked["streams"])]
    started = time.monotonic()
    for request in requests:
        engine.submit(request)
    stamps: dict[str, list[tuple[float, int]]] = {request.id: [] for request in requests}
    running = set(stamps)
    while running:
        for event in events.get():
            if isinstance(event, TokensEmitted):
                stamps[event.request_id].append((event.at_s, len(event.token_ids)))
            elif isinstance(event, SequenceEnded):
                running.discard(event.request_id)
    return {
        "decode_tps": [_rate(list_) for list_ in stamps.values()],
        "ttft_s": [list_[0][0] - started for list_ in stamps.values()],
    }


def _build_request(codec: TextCodec, asked: dict[str, Any], index: int) -> EngineRequest:
    prompt = build_prompt(asked["prompt_tokens"], asked["seed"] + index)
    ids = codec.encode_chat([{"role": "user", "content": prompt}])
    return EngineRequest(
        id=f"{asked['seed']}-{index}",
        prompt_ids=tuple(ids),
        max_tokens=asked["max_tokens"],
        sampling=Sampling(temperature=0.0),
        stop_ids=codec.stop_ids,
    )


def _rate(stamps: list[tuple[float, int]]) -> float | None:
    span = stamps[-1][0] - stamps[0][0]
    tokens = sum(count for _, count in stamps[1:])
    return tokens / span if span else None


if __name__ == "__main__":
    main(sys.argv[1])
