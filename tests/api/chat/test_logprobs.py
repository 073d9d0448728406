"""Log-probabilities in the dialect; which tokens they are shown for is told in `test_reply.py`."""

from __future__ import annotations

import json
from typing import Any


async def test_logprobs_are_in_the_dialect_up_to_the_stop(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("aě|b")
    answer = await rig.post(chat_body(logprobs=True, top_logprobs=2, stop="|"))
    choice = json.loads(await answer.get_data())["choices"][0]
    assert choice["message"]["content"] == "aě"
    end = {"token": "<end>", "logprob": -9999.0, "bytes": list(b"<end>")}
    likely = [
        {"token": "a", "logprob": -0.097, "bytes": [97]},
        {"token": "\ufffd", "logprob": -0.196, "bytes": [196]},
        {"token": "\ufffd", "logprob": -0.155, "bytes": [155]},
    ]
    assert choice["logprobs"] == {
        "content": [{**token, "top_logprobs": [token, end]} for token in likely],
        "refusal": None,
    }


async def test_logprobs_without_alternatives_and_of_an_empty_answer(rig: Any, chat_body: Any, speak: Any) -> None:
    rig.engine.script = speak("a")
    one = json.loads(await (await rig.post(chat_body(logprobs=True))).get_data())["choices"][0]["logprobs"]
    assert one["content"] == [{"token": "a", "logprob": -0.097, "bytes": [97], "top_logprobs": []}]
    rig.engine.script = speak()
    none = json.loads(await (await rig.post(chat_body(logprobs=True))).get_data())["choices"][0]["logprobs"]
    assert none == {"content": [], "refusal": None}
