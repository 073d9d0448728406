"""The engine by itself, in a process of its own: no HTTP, no text, the same prompts. Answers one line per request.

Reads JSON lines `{"streams": n, "prompt_tokens": n, "max_tokens": n, "seed": n}` from standard input and writes
`{"decode_tps": [..], "ttft_s": [..]}`, measured from the engine's own time stamps.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from engine_runs import EngineBench, Trace
from load import build_prompt


def main(path: str) -> None:
    """Load the checkpoint at `path` and answer requests until standard input ends."""
    engine = EngineBench(path)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_measure(engine, json.loads(line))), flush=True)
    engine.stop()


def _measure(engine: EngineBench, asked: dict[str, Any]) -> dict[str, Any]:
    traces = [_submit(engine, asked, index) for index in range(asked["streams"])]
    engine.run(*traces)
    return {
        "decode_tps": [trace.decode_tps if len(trace.emitted) > 1 else None for trace in traces],
        "ttft_s": [trace.emitted[0].at_s - trace.submitted_s for trace in traces],
    }


def _submit(engine: EngineBench, asked: dict[str, Any], index: int) -> Trace:
    prompt = build_prompt(asked["prompt_tokens"], asked["seed"] + index)
    ids = engine.codec.encode_chat([{"role": "user", "content": prompt}]).token_ids
    return engine.submit(ids, asked["max_tokens"], stop_ids=engine.codec.stop_ids)


if __name__ == "__main__":
    main(sys.argv[1])
