"""Grammars tried out on whole texts, and guides, with nano's vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

import server.text.tokenizer as tokenizer_module
from server.text.grammar import Grammar
from server.text.guide import GuideBuilder

NANO = Path(tokenizer_module.__file__).parents[1] / "models" / "nano"

Accepts = Callable[[Grammar, str], bool]


@pytest.fixture(scope="session")
def accepts() -> Accepts:
    """Whether a text is one of a grammar's, whole; names of special tokens in it stand for those."""
    vocabulary = LLTokenizer((NANO / "tokenizer.json").read_text(), n_vocab=3072, eos_token=[2, 0])

    def check(grammar: Grammar, text: str) -> bool:
        matcher = LLMatcher(vocabulary, grammar.text, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = vocabulary.tokenize_str(text, parse_special=True)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return check


@pytest.fixture(scope="session")
def backend() -> Tokenizer:
    """Nano's."""
    return Tokenizer.from_file(str(NANO / "tokenizer.json"))


@pytest.fixture(scope="session")
def builder(backend: Tokenizer) -> GuideBuilder:
    """For nano."""
    return GuideBuilder(backend, 3072, frozenset({0, 2}))
