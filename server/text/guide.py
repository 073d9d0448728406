"""Holds an answer to what was asked of its form: how long it may think, and the grammar that it then follows.

A guide is built on a text thread, where its grammar is compiled, and then belongs to the engine's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from msgspec.structs import replace

from server.engine.guide import Guide, MaskRow, allows
from server.errors import FormLost, InvalidRequest, UnsupportedParameter
from server.text.grammar import LONGEST_LEAD, Grammar
from server.text.matcher import PLACE, GrammarMatcher, MatchFault, shorten_fault

LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=2_000_000,
    max_items_in_row=10_000,
    max_lexer_states=50_000,
    max_grammar_size=300_000,
    verbose_errors=False,
)
"""A half to a fifth of llguidance's own, but for items. Of two dozen hostile schemas (nested quantifiers, 100 million
items, references that go round) none compiles for longer than 1 s with them, and no mask takes longer than 0.2 s
(V = 248,320, 2 x86 cores with five other loads, 2026-11-30). Of plain schemas and 40 tools a mask takes 20 µs, the
first inside of a kind of text up to 5 ms.

Each optional key of an object is four items of a row, since any of them may be the next. At V = 248,000 the mask at a
key of 1,000 took 7 ms, of 2,000 26 ms; where tokens pair punctuation with words, ten times that. Ten items take 1 µs.
"""


class Thought(msgspec.Struct, frozen=True):
    """How an answer may think before its text."""

    end_ids: tuple[int, ...]
    """The tokens that end a thought, in order; at least one."""
    budget_tokens: int | None = None
    """After so many the end is written for the model; None lets it think as long as it likes."""
    is_open: bool = True
    """Whether the prompt has begun the thought already."""
    begin_id: int | None = None
    """The token by which the answer itself begins one; None when it does not. A grammar lets it come first alone."""


class _Place(msgspec.Struct, frozen=True):
    """How far an answer has come in thinking."""

    in_thought: bool
    may_begin: bool
    thought_tokens: int = 0
    matched: int = 0
    """How many of the newest tokens are the beginning of the thought's end."""


class StagedGuide:
    """A thought, free or with a budget, and then a grammar or anything."""

    def __init__(self, thought: Thought | None, matcher: GrammarMatcher | None, stop_row: MaskRow) -> None:
        self._thought = thought or Thought((), is_open=False)
        self._matcher = matcher
        self._stop_row = stop_row
        self._unended = ~stop_row
        """Anything but an end: an answer that owes a form does not end in its thought."""
        self._place = _Place(self._thought.is_open, not self._thought.is_open and self._thought.begin_id is not None)
        self._first_row: tuple[MaskRow | None] | None = None
        """Of the place where the answer is, once it was asked for."""
        self._is_over = False
        self._looks_ahead = True
        """Until looking past a draft has failed once."""

    def look(self, drafted: Sequence[int]) -> list[MaskRow | None]:
        """What may come next, and after each of the first drafts that may come."""
        if self._is_over:
            return [None] * (1 + len(drafted))
        if self._first_row is None:
            try:
                self._first_row = (self._find_row(self._place),)
            except MatchFault as fault:
                raise _build_end(fault) from fault
        rows = [*self._first_row]
        if self._looks_ahead:
            self._look_past(drafted, rows)
        return rows

    def take(self, token: int) -> None:
        """A token was emitted."""
        self._first_row = None
        self._is_over = self._is_over or allows(self._stop_row, token)
        if self._is_over:
            return
        try:
            self._place, _ = self._advance(self._place, token)
        except MatchFault as fault:
            raise _build_end(fault) from fault

    def _look_past(self, drafted: Sequence[int], rows: list[MaskRow | None]) -> None:
        """Add the rows after drafts, and come back."""
        place, taken = self._place, 0
        try:
            for token in drafted:
                if not allows(rows[-1], token):
                    break
                if allows(self._stop_row, token):
                    rows.append(None)  # nothing is kept of what comes after an end
                    break
                place, by_grammar = self._advance(place, token)
                taken += by_grammar
                rows.append(self._find_row(place))
            if self._matcher is not None:
                self._matcher.go_back(taken)
        except MatchFault:
            # Too much work lies behind a draft that the model may never choose: whether it does is not ours to say.
            assert self._matcher is not None, "only a matcher faults"
            self._matcher.restart(taken)
            self._looks_ahead = False

    def _find_row(self, place: _Place) -> MaskRow | None:
        thought = self._thought
        if place.in_thought:
            if thought.budget_tokens is not None and place.thought_tokens >= thought.budget_tokens:
                return _build_row((thought.end_ids[place.matched],), len(self._stop_row))
            return None if self._matcher is None else self._unended
        if self._matcher is None:
            return None
        row = self._matcher.read_row()
        if place.may_begin and thought.begin_id is not None:
            row |= _build_row((thought.begin_id,), len(row))
        return row

    def _advance(self, place: _Place, token: int) -> tuple[_Place, int]:
        """The place after a token, and how many tokens the matcher took for it."""
        if place.in_thought:
            return self._think(place, token), 0
        if place.may_begin and token == self._thought.begin_id:
            return replace(place, in_thought=True, may_begin=False), 0
        if self._matcher is None:
            return place, 0
        self._matcher.take(token)
        return replace(place, may_begin=False), 1

    def _think(self, place: _Place, token: int) -> _Place:
        end = self._thought.end_ids
        matched = _match_end((*end[: place.matched], token), end)
        tokens = place.thought_tokens + 1
        if matched < len(end):
            return replace(place, thought_tokens=tokens, matched=matched)
        again = self._matcher is None and self._thought.begin_id is not None
        return _Place(in_thought=False, may_begin=again, thought_tokens=tokens - len(end))


class GuideBuilder:
    """Builds guides for one checkpoint's vocabulary. Its methods may be called from any thread.

    `backend` is a `tokenizers.Tokenizer`; None where a checkpoint has another kind, which takes no grammar.
    """

    def __init__(self, backend: Any, vocab_size: int, stop_ids: frozenset[int]) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._stop_ids = sorted(token for token in stop_ids if token < vocab_size)
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Read the vocabulary now and not with the first grammar. Raises UnsupportedParameter.

        At V = 248,320 it takes 1.7 s of a processor and 220 MB (2 x86 cores, 2026-11-30) and lets no other Python
        thread run, so it is best done before serving.
        """
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._read_vocabulary()

    def build(self, grammar: Grammar | None, thought: Thought | None = None) -> Guide | None:
        """A guide for one request; None when anything goes. Raises InvalidRequest for a grammar that cannot be.

        Nor one that leads nowhere from where each of its probes ends: there most of the work is, and after the first
        token it would be a failure of the stream.

        Takes what compiling takes, up to a second for the worst that is let through; other threads run meanwhile.
        """
        if grammar is None and (thought is None or thought.budget_tokens is None):
            return None
        matcher = None if grammar is None else self._compile(grammar)
        words = (max(self._vocab_size, self._tokenizer.vocab_size if self._tokenizer else 0) + 31) // 32
        return StagedGuide(thought, matcher, _build_row(self._stop_ids, words))

    def _compile(self, grammar: Grammar) -> GrammarMatcher:
        try:
            self.prepare()
        except UnsupportedParameter as fault:
            raise UnsupportedParameter(fault.message, param=grammar.param) from fault
        tokenizer = self._tokenizer
        assert tokenizer is not None, "it was read"

        def build() -> LLMatcher:
            return LLMatcher(tokenizer, grammar.text, log_level=0, limits=LIMITS)

        try:
            matcher = GrammarMatcher(build, (tokenizer.vocab_size + 31) // 32)
            _check_text(matcher, tokenizer.greedy_tokenize(LONGEST_LEAD))
        except MatchFault as fault:
            raise _build_refusal(grammar, str(fault)) from fault
        for probe in grammar.probes:
            try:
                _check_probe(matcher, (*probe.lead, *tokenizer.greedy_tokenize(probe.text)))
            except MatchFault as fault:
                raise _build_refusal(replace(grammar, owners=(probe.owner,)), str(fault)) from fault
        return matcher

    def _read_vocabulary(self) -> LLTokenizer:
        if self._backend is None:
            raise UnsupportedParameter("The served model's tokenizer cannot be held to a form.")
        if not self._stop_ids:
            raise UnsupportedParameter(
                "The served model names no token that ends an answer, so an answer cannot be held to a form."
            )
        ids: Iterable[int] = self._backend.get_vocab(with_added_tokens=True).values()
        size = max(self._vocab_size, max(ids) + 1)  # llguidance takes no fewer than there are
        return LLTokenizer(self._backend.to_str(), n_vocab=size, eos_token=self._stop_ids)


def _check_text(matcher: GrammarMatcher, lead: Sequence[int]) -> None:
    """Raise MatchFault when there is nothing behind the lead. Makes the first masks too, which take longest."""
    matcher.read_row()
    for token in lead:
        matcher.take(token)
    if not matcher.read_row().any():
        raise MatchFault("no text satisfies it")
    matcher.go_back(len(lead))


def _check_probe(matcher: GrammarMatcher, tokens: Sequence[int]) -> None:
    """Raise MatchFault when the grammar cannot be followed along these tokens, as far as they may come."""
    taken = matcher.take_allowed(tokens)
    matcher.read_row()
    matcher.go_back(taken)


def _match_end(newest: Sequence[int], end: Sequence[int]) -> int:
    """The longest beginning of a thought's end that the newest tokens end with."""
    lengths = range(min(len(newest), len(end)), 0, -1)
    return next((length for length in lengths if tuple(newest[-length:]) == tuple(end[:length])), 0)


def _build_row(token_ids: Iterable[int], words: int) -> MaskRow:
    row = np.zeros(words, np.uint32)
    for token in token_ids:
        row[token >> 5] |= np.uint32(1 << (token & 31))
    return row


def _build_refusal(grammar: Grammar, error: str) -> InvalidRequest:
    found = PLACE.match(error)
    line = min(int(found[1]) if found else 1, len(grammar.owners))
    owner = grammar.owners[max(line, 1) - 1]
    return InvalidRequest(f"{owner} cannot be enforced: {shorten_fault(error)}.", param=grammar.param)


def _build_end(fault: MatchFault) -> FormLost:
    return FormLost(f"This answer cannot be held to its form any further: {shorten_fault(str(fault))}.")
