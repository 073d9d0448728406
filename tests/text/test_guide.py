from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from tokenizers import Tokenizer

import server.text.tokenizer as tokenizer_module
from server.engine.guide import Guide, MaskRow, allows
from server.errors import SequenceFailed, UnsupportedParameter
from server.text.call_grammar import CallMarkers, build_call_grammar
from server.text.grammar import Grammar, build_object_grammar, build_schema_grammar
from server.text.guide import GuideBuilder, Thought
from server.text.matcher import GrammarMatcher, MatchFault
from server.text.tools import Tool

T = TypeVar("T")

NANO = Path(tokenizer_module.__file__).parents[1] / "models" / "nano"
VOCAB = 3072
STOPS = frozenset({0, 2})
THINK, END_THINK, CALL, END_CALL = 3, 4, 5, 6
OBJECT = build_object_grammar("response_format")
POINT = build_schema_grammar(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name", "size"],
        "additionalProperties": False,
    },
    "response_format",
)


def list_allowed(row: MaskRow | None) -> set[int] | None:
    return None if row is None else {token for token in range(VOCAB) if allows(row, token)}


def build(builder: GuideBuilder, grammar: Grammar | None, thought: Thought | None = None) -> Guide:
    guide = builder.build(grammar, thought)
    assert guide is not None
    return guide


def take(guide: Guide, ids: Sequence[int]) -> None:
    for token in ids:
        (row,) = guide.look(())
        assert allows(row, token), f"{token} may not come"
        guide.take(token)


def read_allowed(guide: Guide) -> set[int] | None:
    (row,) = guide.look(())
    return list_allowed(row)


def encode(backend: Tokenizer, text: str) -> list[int]:
    return backend.encode(text, add_special_tokens=False).ids


def test_where_nothing_is_asked_there_is_no_guide(builder: GuideBuilder) -> None:
    assert builder.build(None) is None
    assert builder.build(None, Thought((END_THINK,))) is None


def test_an_answer_ends_when_its_grammar_does_and_not_before(builder: GuideBuilder, backend: Tokenizer) -> None:
    guide = build(builder, POINT)
    for token in encode(backend, '{"name": "a b", "size": 5'):
        assert not (read_allowed(guide) or set()) & STOPS
        take(guide, [token])
    take(guide, encode(backend, "}"))
    assert read_allowed(guide) == STOPS
    take(guide, [2])
    assert guide.look((5, 6)) == [None] * 3


def test_special_and_padded_tokens_never_stand_in_a_string(backend: Tokenizer) -> None:
    padded = GuideBuilder(backend, VOCAB + 40, STOPS)
    guide = build(padded, OBJECT)
    take(guide, encode(backend, '{"a": "x'))
    (row,) = guide.look(())
    assert len([token for token in range(VOCAB) if allows(row, token)]) > 2000
    assert not [token for token in (*range(14), *range(VOCAB, VOCAB + 40)) if allows(row, token)]


def test_a_tokenizer_with_more_tokens_than_the_model(backend: Tokenizer) -> None:
    guide = build(GuideBuilder(backend, 3001, STOPS), OBJECT)
    take(guide, encode(backend, '{"a'))
    (row,) = guide.look(())
    assert row is not None
    assert len(row) * 32 >= 3001


@pytest.mark.parametrize("seed", range(12))
def test_looking_past_drafts_sees_what_taking_them_would_and_leaves_no_trace(builder: GuideBuilder, seed: int) -> None:
    dice = random.Random(seed)
    tool = Tool("f", {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}, {})
    calls = build_call_grammar([tool], "qwen_xml", CallMarkers("", "", CALL, END_CALL), "tools")
    thought = dice.choice(
        [None, Thought((END_THINK,), 3), Thought((50, 51, 50, 52), 6), Thought((7,), 2, False, THINK)]
    )
    grammar = dice.choice([POINT, OBJECT, calls] if thought is None else [POINT, calls, None])
    looking, emitted = build(builder, grammar, thought), list[int]()
    for _ in range(40):
        drafts = [dice.choice([50, 51, 52, END_THINK, dice.randrange(VOCAB)]) for _ in range(dice.randint(0, 4))]
        ahead = build(builder, grammar, thought)
        for token in emitted:
            ahead.take(token)
        rows = looking.look(drafts)
        for place, row in enumerate(rows):
            assert list_allowed(row) == read_allowed(ahead)
            if place < len(rows) - 1:
                ahead.take(drafts[place])
        assert len(rows) == len(drafts) + 1 or not allows(rows[-1], drafts[len(rows) - 1])
        row = rows[0]
        choices = sorted((list_allowed(row) or set(range(14, VOCAB))) - STOPS)
        if not choices:
            break
        token = dice.choice(drafts[: len(rows) - 1] or choices)
        token = token if allows(row, token) else dice.choice(choices)
        looking.take(token)
        emitted.append(token)


def test_a_thought_is_free_until_its_end_and_then_the_grammar_begins(builder: GuideBuilder, backend: Tokenizer) -> None:
    guide = build(builder, POINT, Thought((END_THINK,)))
    assert read_allowed(guide) == set(range(VOCAB)) - STOPS
    take(guide, [*encode(backend, "Let me <b>see</b> {"), CALL, END_THINK, *encode(backend, "\n\n{")])
    assert not allows(guide.look(())[0], encode(backend, "see")[0])
    take(guide, encode(backend, '"name": "", "size": 1}'))
    assert read_allowed(guide) == STOPS


def test_a_budget_ends_a_thought_token_by_token(builder: GuideBuilder) -> None:
    guide = build(builder, None, Thought((90, 91, 92), budget_tokens=4))
    assert [row is None for row in guide.look((20, 21, 90, 22, 90, 91))] == [True] * 4 + [False] * 3
    take(guide, [20, 21, 90, 22])
    assert read_allowed(guide) == {90}
    take(guide, [90])
    assert read_allowed(guide) == {91}
    take(guide, [91, 92])
    assert read_allowed(guide) is None
    take(guide, [90] * 20)
    assert read_allowed(guide) is None


def test_a_budget_that_is_reached_within_the_end_goes_on_there(builder: GuideBuilder) -> None:
    guide = build(builder, None, Thought((90, 90, 91), budget_tokens=3))
    take(guide, [90, 90, 90])
    assert read_allowed(guide) == {91}
    take(guide, [91])
    assert read_allowed(guide) is None


def test_no_budget_at_all_is_no_thought(builder: GuideBuilder) -> None:
    guide = build(builder, POINT, Thought((END_THINK,), budget_tokens=0))
    assert read_allowed(guide) == {END_THINK}


def test_an_answer_may_begin_its_thought_itself_but_only_first(builder: GuideBuilder, backend: Tokenizer) -> None:
    thought = Thought((END_THINK,), 2, is_open=False, begin_id=THINK)
    thinking, straight = build(builder, POINT, thought), build(builder, POINT, thought)
    take(thinking, [THINK, 20, 21])
    assert read_allowed(thinking) == {END_THINK}
    take(thinking, [END_THINK, *encode(backend, "{")])
    take(straight, encode(backend, "\n{"))
    assert not allows(straight.look(())[0], THINK)
    free = build(builder, None, thought)
    take(free, [50, 51, THINK, 20, 21, END_THINK, 60, THINK])
    assert read_allowed(free) == {END_THINK}, "one budget for all thoughts"


class Weary(GrammarMatcher):
    """Has no strength for more than a few tokens, as llguidance where a grammar is too much work."""

    last = 5

    def read_row(self) -> MaskRow:
        if len(self._taken) > self.last:
            raise MatchFault("at 1(2): Too many things.\nat length")
        return super().read_row()


def test_too_much_work_behind_a_draft_is_no_fault_before_it_is_chosen(
    builder: GuideBuilder, backend: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.text.guide.GrammarMatcher", Weary)
    guide = build(builder, OBJECT)
    ids = encode(backend, '{"a": [1, 2, 3, 4]}')
    take(guide, ids[:3])
    before = read_allowed(guide)
    assert len(guide.look(ids[3:8])) == 3
    assert read_allowed(guide) == before
    assert len(guide.look(ids[3:5])) == 1, "it does not look ahead again"
    take(guide, ids[3:5])
    guide.take(ids[5])
    with pytest.raises(
        SequenceFailed, match=r"^This answer cannot be held to its form any further: Too many things\.$"
    ):
        guide.look(())


def test_a_token_that_may_not_come_is_the_sequences_fault(builder: GuideBuilder) -> None:
    with pytest.raises(SequenceFailed, match="cannot be held to its form"):
        build(builder, OBJECT).take(2000)


def test_the_vocabulary_is_read_once_whoever_asks_first(backend: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, reads = GuideBuilder(backend, VOCAB, STOPS), list[int]()
    read = builder._read_vocabulary
    monkeypatch.setattr(builder, "_read_vocabulary", lambda: reads.append(1) or read())
    assert builder.build(None, Thought((END_THINK,), 5)) is not None
    assert reads == []
    with ThreadPoolExecutor(8) as pool:
        guides = list(pool.map(lambda _: build(builder, POINT), range(16)))
    assert reads == [1]
    assert len({frozenset(read_allowed(guide) or ()) for guide in guides}) == 1


def test_a_guide_built_on_one_thread_works_on_another(builder: GuideBuilder, backend: Tokenizer) -> None:
    guide, seen = build(builder, POINT), list[set[int] | None]()

    def work() -> None:
        take(guide, encode(backend, '{"name": "x", "size": 12}'))
        seen.append(read_allowed(guide))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert seen == [STOPS]


@pytest.mark.parametrize(
    ("tokenizer", "stops", "said"),
    [(None, STOPS, "tokenizer cannot be held"), ("nano", frozenset[int](), "names no token that ends an answer")],
)
def test_a_model_that_takes_no_grammar_says_so(
    backend: Tokenizer, tokenizer: str | None, stops: frozenset[int], said: str
) -> None:
    with pytest.raises(UnsupportedParameter, match=said) as refusal:
        GuideBuilder(tokenizer and backend, VOCAB, stops).build(OBJECT)
    assert refusal.value.param == "response_format"


def test_a_row_has_the_shape_that_the_engine_takes(builder: GuideBuilder) -> None:
    (row,) = build(builder, POINT).look(())
    assert row is not None
    assert (row.dtype, row.shape) == (np.uint32, (VOCAB // 32,))
