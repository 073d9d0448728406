"""The embedded checkpoint: it loads, writes text, and is what its README says."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from mlx_lm.utils import load_tokenizer

from server.models.cache import ServedModel
from server.models.folder import EMBEDDED_FOLDER

Serve = Callable[[str], ServedModel]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Nano's own tokenizer."""
    return load_tokenizer(EMBEDDED_FOLDER)


def test_facts_of_nano(served: Serve) -> None:
    facts = served("nano").facts
    assert (facts.id, facts.architecture, facts.embedded, facts.has_mtp) == ("nano", "qwen4_exp", True, True)
    assert (facts.vocab_size, facts.context_limit_tokens, facts.quantization) == (3072, 65_536, "none")
    assert 6_000_000 < facts.parameters < 6_700_000


def test_nano_writes_code_when_asked_for_a_function(
    served: Serve, decode_greedily: Callable[..., list[int]], tokenizer: Any
) -> None:
    messages = [{"role": "user", "content": "Write the function join from os."}]
    prompt = tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=False))
    text = tokenizer.decode(decode_greedily(served("nano"), prompt, 24))
    assert text.startswith("```python\ndef join(self")


def test_nano_has_learned_python(served: Serve, tokenizer: Any, feed: Callable[..., Any]) -> None:
    model = served("nano")
    source = "import os\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path = path\n"
    ast.parse(source)
    tokens = tokenizer.encode(source)
    state, surprise = model.build_state(), 0.0
    for token, following in pairwise(tokens):
        logits = feed(model, state, (token,)).astype(np.float64)
        surprise += np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[following]
    # Its perplexity on held-out files is 22; a wrong forward pass is near the vocabulary's 3072.
    assert np.exp(surprise / (len(tokens) - 1)) < 22


def test_past_the_budget_chunks_and_steps_agree(served: Serve, feed: Callable[..., Any]) -> None:
    model = served("nano")
    tokens = tuple(int(token) for token in np.random.default_rng(3).integers(20, 3000, 1100))
    once = feed(model, model.build_state(), tokens, 512)
    state = model.build_state()
    feed(model, state, tokens[:1020], 200)
    assert np.abs(feed(model, state, tokens[1020:], 1) - once).max() < 1e-3
